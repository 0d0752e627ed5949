// A connected client of either library, as their documentation connects one.
'use strict';

async function connect(library, port, protocol) {
  const module = require(library);
  if (library.startsWith('ioredis')) {
    return new module.Redis({ port, protocol });
  }
  const client = module.createClient({ url: `redis://127.0.0.1:${port}`, RESP: protocol });
  client.on('error', () => {}); // it reconnects automatically
  await client.connect();
  return client;
}

module.exports = { connect };
