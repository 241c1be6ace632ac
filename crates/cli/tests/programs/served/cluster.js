// Four processes that serve the files of a folder, and send bodies back: `cluster.js FOLDER PORT PIDFILE`.
const cluster = require('cluster'), fs = require('fs'), http = require('http'), path = require('path');
const [, , root, port, pid] = process.argv;
if (cluster.isPrimary) {
    fs.writeFileSync(pid, String(process.pid));
    for (let count = 0; count < 4; count++) cluster.fork();
    cluster.on('exit', () => cluster.fork());
    process.on('SIGTERM', () => process.exit(0));
} else {
    const server = http.createServer((request, response) => {
        if (request.method === 'POST') {
            request.pipe(response);
            return;
        }
        const file = path.join(root, path.basename(request.url));
        response.setHeader('Content-Length', fs.statSync(file).size);
        fs.createReadStream(file).pipe(response);
    });
    server.httpAllowHalfOpen = true;
    server.listen(port, '0.0.0.0');
}
