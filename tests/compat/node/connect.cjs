// A connected client of either library, as their documentation connects one.
'use strict';

// A URL in SERVER_URL, such as rediss://user:password@host:port, counts more than the port.
async function connect(library, port, protocol) {
  const module = require(library);
  const url = process.env.SERVER_URL || `redis://127.0.0.1:${port}`;
  if (library.startsWith('ioredis')) {
    return new module.Redis(url, { protocol });
  }
  const client = module.createClient({ url, RESP: protocol });
  client.on('error', () => {}); // it reconnects automatically
  await client.connect();
  return client;
}

module.exports = { connect };
