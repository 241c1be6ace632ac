// Serves the files of a folder, and sends bodies back: `bun.js FOLDER PORT`.
const [root, port] = process.argv.slice(2);
Bun.serve({
    hostname: '0.0.0.0',
    port: Number(port),
    maxRequestBodySize: 16 << 20,
    async fetch(request) {
        if (request.method === 'POST') return new Response(await request.arrayBuffer());
        return new Response(Bun.file(root + new URL(request.url).pathname));
    },
});
