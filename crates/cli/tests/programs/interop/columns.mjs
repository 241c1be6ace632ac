// The same as columns.py for libraries of Node, and pictures of a film.

const [library, url, path] = process.argv.slice(2);
const columns = ["c2", "c5"];

// Of each library: what it reads of the URL, and of the file.
const reads = {
  async hyparquet() {
    const { asyncBufferFromFile, asyncBufferFromUrl, parquetReadObjects } = await import("hyparquet");
    const rows = async (file) => {
      const found = await parquetReadObjects({ file: await file, columns });
      return found.map((row) => columns.map((name) => `${row[name]}`));
    };
    return [await rows(asyncBufferFromUrl({ url })), await rows(asyncBufferFromFile(path))];
  },
  async zarrita() {
    const { FetchStore, get, open, slice } = await import("zarrita");
    const { default: FileSystemStore } = await import("@zarrita/storage/fs");
    const part = async (store) => {
      const array = await open(store, { kind: "array" });
      const { data, shape } = await get(array, [slice(450, 650), slice(150, 250)]);
      return [shape, Array.from(data, String)];
    };
    return [await part(new FetchStore(url)), await part(new FileSystemStore(path))];
  },
  async mediabunny() {
    const { ALL_FORMATS, EncodedPacketSink, FilePathSource, Input, UrlSource } = await import("mediabunny");
    const packets = async (source) => {
      const track = await new Input({ source, formats: ALL_FORMATS }).getPrimaryVideoTrack();
      const sink = new EncodedPacketSink(track);
      const found = [];
      let packet = await sink.getPacket(30);
      for (; packet && found.length < 48; packet = await sink.getNextPacket(packet))
        found.push([packet.timestamp, Buffer.from(packet.data).toString("base64")]);
      return found;
    };
    return [await packets(new UrlSource(url)), await packets(new FilePathSource(path))];
  },
};

const [got, wanted] = (await reads[library]()).map((found) => JSON.stringify(found));
if (got !== wanted || wanted.length < 1000) {
  console.error("other values");
  process.exit(1);
}
