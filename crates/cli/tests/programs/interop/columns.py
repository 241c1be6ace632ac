"""Has a library read two of the columns of a Parquet file, or a part of an array."""
import os
import sys

library, url, path = sys.argv[1:]
COLUMNS = ["c2", "c5"]

import pyarrow.parquet as pq

wanted = None if library == "zarr" else pq.read_table(path, columns=COLUMNS).to_pydict()
match library:
    case "polars":
        import polars

        got = polars.scan_parquet(url).select(COLUMNS).collect().to_dict(as_series=False)
    case "pyarrow":
        import fsspec

        got = pq.read_table(url, columns=COLUMNS, filesystem=fsspec.filesystem("http")).to_pydict()
    case "duckdb":
        import pathlib

        import duckdb
        import duckdb_extension_httpfs

        connection = duckdb.connect(config={"autoinstall_known_extensions": False})
        [extension] = pathlib.Path(duckdb_extension_httpfs.__file__).parent.rglob("*.duckdb_extension")
        connection.load_extension(str(extension))
        found = connection.sql(f"select {', '.join(COLUMNS)} from read_parquet('{url}')")
        got = {name: list(column) for name, column in zip(COLUMNS, zip(*found.fetchall()))}
    case "zarr":
        import zarr

        part = (slice(450, 650), slice(150, 250))
        got, wanted = (zarr.open_array(place, mode="r")[part].tolist() for place in (url, path))
if got != wanted:
    sys.exit("other values")
# Not by way of the interpreter's end, which threads of pyarrow may outlive: Python aborts then.
os._exit(0)
