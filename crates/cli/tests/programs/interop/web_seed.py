"""Makes a torrent of a file with an HTTP server as the only source (BEP 19), and writes it or has libtorrent fetch it."""
import sys
import warnings

import libtorrent as lt

warnings.simplefilter("ignore", DeprecationWarning)

url, path, *torrent_path = sys.argv[1:]
files = lt.file_storage()
lt.add_files(files, path)
torrent = lt.create_torrent(files, 256 << 10)
torrent.add_url_seed(url)
lt.set_piece_hashes(torrent, path[: path.rindex("/")])
if torrent_path:
    with open(torrent_path[0], "wb") as file:
        file.write(lt.bencode(torrent.generate()))
    sys.exit(0)
info = lt.torrent_info(torrent.generate())
session = lt.session({"enable_dht": False, "enable_lsd": False, "alert_mask": lt.alert.category_t.status_notification
                      | lt.alert.category_t.error_notification, "ssrf_mitigation": False})
session.add_torrent({"ti": info, "save_path": "."})
while True:
    session.wait_for_alert(10_000)
    for alert in session.pop_alerts():
        if isinstance(alert, lt.torrent_finished_alert):
            sys.exit(0)
        if isinstance(alert, (lt.torrent_error_alert, lt.url_seed_alert)):
            sys.exit(str(alert))
