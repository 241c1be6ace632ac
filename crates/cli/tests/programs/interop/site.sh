#!/usr/bin/env bash
# Makes the files that the clients of interop_long.rs fetch, in the folder $1, and older copies of some in $2.
set -euo pipefail
root=$1 older=$2 python=$CLIENTS/python/bin/python

# A text whose variant is compressed, and random bytes of which an older copy differs in 50 places.
"$python" - "$root" "$older" <<'END'
import random, sys
root, older = sys.argv[1:]
with open(f"{root}/table.csv", "w") as file:
    file.write("".join("%d,%d\n" % (i, i * 7919 % 1000003) for i in range(400_000)))
chance = random.Random(1)
image = bytearray(chance.randbytes(8 << 20))
open(f"{older}/image.bin", "wb").write(image)
for at in range(0, len(image), 160_000):
    image[at:at + 64] = chance.randbytes(64)
open(f"{root}/image.bin", "wb").write(image)
import pyarrow as pa, pyarrow.parquet as pq
rows = range(300_000)
columns = {f"c{i}": [row * (i + 3) % 100_003 for row in rows] for i in range(8)}
pq.write_table(pa.table(columns), f"{root}/table.parquet", row_group_size=30_000)
import numpy, zarr
array = zarr.create_array(f"{root}/array.zarr", shape=(2000, 500), chunks=(100, 100), shards=(1000, 500), dtype="int64")
array[:] = numpy.arange(1_000_000).reshape(2000, 500)
END
gzip --keep "$root/table.csv"

(cd "$root" && zsyncmake -b 4096 -u image.bin image.bin 2>/dev/null)
zck --output "$older/image.zck" "$older/image.bin"
zck --output "$root/image.zck" "$root/image.bin"

# A film of constant rate: in one file, as HLS in segments and in ranges of one file, and as DASH in both.
film=(ffmpeg -nostdin -v error)
"${film[@]}" -f lavfi -i testsrc2=s=640x360:r=24 -t 40 -c:v libx264 -preset ultrafast -pix_fmt yuv420p -g 48 \
    -x264-params nal-hrd=cbr:force-cfr=1 -b:v 2500k -minrate 2500k -maxrate 2500k -bufsize 2500k -movflags +faststart "$root/film.mp4"
film+=(-i "$root/film.mp4" -c copy)
mkdir "$root"/{hls,hls-ranges,dash,dash-ranges}
"${film[@]}" -f hls -hls_time 4 -hls_playlist_type vod -hls_segment_filename "$root/hls/film-%d.ts" "$root/hls/film.m3u8"
"${film[@]}" -f hls -hls_time 4 -hls_playlist_type vod -hls_flags single_file -hls_segment_type fmp4 "$root/hls-ranges/film.m3u8"
"${film[@]}" -f dash -seg_duration 4 "$root/dash/film.mpd"
"${film[@]}" -f dash -seg_duration 4 -single_file 1 -global_sidx 1 "$root/dash-ranges/film.mpd"
gzip --keep "$root"/*/film.m3u8 "$root"/*/film.mpd
ls "$root"/hls/film-*.ts | sort --version-sort | xargs cat >"$older/film.ts"
if [ -d "$root/memory" ]; then cp "$root/film.mp4" "$root/memory/"; fi

# The players of Node's registry, beside the page that has them play.
modules=$CLIENTS/node/node_modules
cp "$(dirname "$0")/player.html" "$root/"
cp "$modules/hls.js/dist/hls.min.js" "$modules/shaka-player/dist/shaka-player.compiled.js" "$modules/video.js/dist/video.min.js" "$root/"
cp "$modules/dashjs/dist/modern/umd/dash.all.min.js" "$root/"

# A repository of Debian packages, and an index of Python's.
mkdir -p "$older/package/DEBIAN" "$older/package/usr/share/interop" "$root/debian" "$root/simple/interop"
printf 'Package: interop\nVersion: 1\nArchitecture: all\nMaintainer: n <n@example.org>\nDescription: test\n' >"$older/package/DEBIAN/control"
cp "$root/image.bin" "$older/package/usr/share/interop/"
dpkg-deb --build --root-owner-group "$older/package" "$root/debian/interop.deb" >/dev/null
cd "$root/debian"
{
    cat "$older/package/DEBIAN/control"
    printf 'Filename: ./interop.deb\nSize: %s\nSHA256: %s\n\n' "$(stat -c %s interop.deb)" "$(sha256sum interop.deb | cut -d' ' -f1)"
} >Packages
gzip --keep Packages
"$python" - "$root" <<'END'
import sys, zipfile
name = f"{sys.argv[1]}/simple/interop/interop-1-py3-none-any.whl"
with zipfile.ZipFile(name, "w") as wheel:
    wheel.write(f"{sys.argv[1]}/image.bin", "interop/image.bin")
    wheel.writestr("interop-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: interop\nVersion: 1\n")
    wheel.writestr("interop-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr("interop-1.dist-info/RECORD", "")
END
echo '<a href="interop-1-py3-none-any.whl">interop</a>' >"$root/simple/interop/index.html"

# A repository of RPM packages.
rpmbuild --quiet -bb --define "_rpmdir $root/rpm" --define "image $root/image.bin" --define '_build_id_links none' \
    --define "_topdir $older/rpmbuild" "$(dirname "$0")/interop.spec" 2>/dev/null
createrepo_c --quiet "$root/rpm"

# Nothing has changed just now.
find "$root" -type f -exec touch --date=2020-01-01 {} +
chmod --recursive a+rX "$root"
