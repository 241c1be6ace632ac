// The same as http2.py for Node's own client: `http2.mjs FILE...`.
import { readFileSync } from "node:fs";
import { connect } from "node:http2";

const { HOST, TRUST, ROOT } = process.env;
const names = process.argv.slice(2);
const [first, last] = [100, 199];
const session = connect(`https://${HOST}`, { ca: readFileSync(TRUST) });

const get = (name, fields) =>
  new Promise((resolve, reject) => {
    session.on("error", reject);
    // Node itself leaves out the brackets of IPv6.
    const stream = session.request({ ":authority": HOST, ":path": `/${name}`, ...fields });
    const pieces = [];
    let status;
    stream.on("response", (fields) => (status = fields[":status"]));
    stream.on("data", (piece) => pieces.push(piece));
    stream.on("error", reject);
    stream.on("close", () => {
      const bytes = Buffer.concat(pieces);
      resolve({ bytes, what: `${name}: ${status}, ${bytes.length} bytes, code ${stream.rstCode}` });
    });
  });

session.setMaxListeners(0);
const name = names.at(-1);
const wholes = names.map((name) => get(name, {}));
const part = get(name, { range: `bytes=${first}-${last}` });
const contents = names.map((name) => readFileSync(`${ROOT}/${name}`));
const got = await Promise.all([...wholes, part]);
session.close();
const wanted = [...contents, contents.at(-1).subarray(first, last + 1)];
const wrong = got.filter(({ bytes }, index) => !bytes.equals(wanted[index]));
if (wrong.length > 0) {
  console.log(wrong.map(({ what }) => what).join("; "));
  process.exit(1);
}
