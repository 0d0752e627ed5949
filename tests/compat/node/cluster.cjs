// Appends to and reads back a stream for each of some keys, with the cluster client of a library that
// knows one node. Prints the number of entries that came back.
//
//   node cluster.cjs LIBRARY PORT KEYS
'use strict';

async function connect(library, port) {
  const module = require(library);
  if (library.startsWith('ioredis')) {
    return new module.Cluster([{ host: '127.0.0.1', port }]);
  }
  const cluster = module.createCluster({ rootNodes: [{ url: `redis://127.0.0.1:${port}` }] });
  await cluster.connect();
  return cluster;
}

async function roundTrip(client, library, key) {
  if (library.startsWith('ioredis')) {
    await client.xadd(key, '*', 'key', key);
    const [[, [[, fields]]]] = await client.xread('STREAMS', key, '0');
    return fields[1] === key;
  }
  await client.xAdd(key, '*', { key });
  const [{ messages }] = await client.xRead({ key, id: '0' });
  return messages[0].message.key === key;
}

async function main([library, port, count]) {
  const client = await connect(library, Number(port));
  let found = 0;
  for (let number = 0; number < Number(count); number += 1) {
    found += await roundTrip(client, library, `${library}:${number}`);
  }
  console.log(JSON.stringify(found));
  await (client.close ? client.close() : client.quit());
}

main(process.argv.slice(2));
