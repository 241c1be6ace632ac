// Serves the files of a folder, and sends bodies back: `deno.js FOLDER PORT`.
const [root, port] = Deno.args;
Deno.serve({ hostname: '0.0.0.0', port: Number(port), onListen() {} }, async (request) => {
    if (request.method === 'POST') return new Response(await request.bytes());
    const file = await Deno.open(root + new URL(request.url).pathname);
    const { size } = await file.stat();
    return new Response(file.readable, { headers: { 'Content-Length': String(size) } });
});
