// The same as range.py for libraries of Node.
import { readFileSync } from "node:fs";

const [library, url, path] = process.argv.slice(2);
const [first, last] = [1_000_000, 1_000_099];
const headers = { range: `bytes=${first}-${last}` };
const wanted = readFileSync(path);

async function byFetch(fetch) {
  const head = await fetch(url, { method: "HEAD" });
  await head.arrayBuffer();
  return Buffer.from(await (await fetch(url, { headers })).arrayBuffer());
}

async function fetched() {
  switch (library) {
    case "got": {
      const { got } = await import("got");
      return await got(url, { headers, retry: { limit: 0 } }).buffer();
    }
    case "axios": {
      const { default: axios } = await import("axios");
      return (await axios.get(url, { headers, responseType: "arraybuffer" })).data;
    }
    case "undici":
      return await byFetch((await import("undici")).fetch);
    case "fetch":
      return await byFetch(fetch);
  }
}

const got = await fetched();
if (got.equals(wanted.subarray(first, last + 1))) console.log("the range");
else if (got.equals(wanted)) console.log("the whole file");
else {
  console.error("other bytes");
  process.exit(1);
}
