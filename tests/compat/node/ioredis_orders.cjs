// A shop's orders on a stream: one producer, a group of workers, a server that restarts under them.
//
//   node ioredis_orders.cjs LIBRARY PORT PROTOCOL
'use strict';

const assert = require('node:assert/strict');
const { connect } = require('./connect.cjs');
const { ask, until, hangUp } = require('./talk.cjs');

const ORDERS = 20;

async function main([library, port, protocol]) {
  const open = () => connect(library, Number(port), Number(protocol));
  const [redis, waiting, subscriber] = await Promise.all([open(), open(), open()]);
  for (const client of [redis, waiting, subscriber]) client.on('error', () => {}); // it reconnects

  const told = [];
  await subscriber.subscribe('done');
  subscriber.on('message', (channel, order) => told.push(order));

  await redis.xgroup('CREATE', 'orders', 'shop', '$', 'MKSTREAM');
  await assert.rejects(redis.xgroup('CREATE', 'orders', 'shop', '$'), /BUSYGROUP/);

  const pipeline = redis.pipeline();
  for (let order = 0; order < ORDERS; order++) {
    pipeline.xadd('orders', 'MAXLEN', '~', 1000, '*', 'order', order, 'note', 'für später');
  }
  const ids = (await pipeline.exec()).map(([error, id]) => (assert.ifError(error), id));
  assert.equal(await redis.xlen('orders'), ORDERS);

  // Half of the orders go to anna, who does the even ones and then loses her connection.
  const done = [];
  const finish = async (client, consumer, read) => {
    for (const [id, [, order]] of read) {
      const [[, acked], [, deleted]] = await client
        .multi().xack('orders', 'shop', id).publish('done', order).exec();
      assert.equal(acked, 1);
      done.push(Number(order));
    }
  };
  const [[key, first]] = await redis.xreadgroup(
    'GROUP', 'shop', 'anna', 'COUNT', ORDERS / 2, 'BLOCK', 1000, 'STREAMS', 'orders', '>');
  assert.equal(key, 'orders');
  assert.deepEqual(first[0], [ids[0], ['order', '0', 'note', 'für später']]);
  await finish(redis, 'anna', first.filter(([, [, order]]) => order % 2 === 0));

  // The other half waits while another reader of all orders stands blocked over the restart.
  const next = waiting.xread('BLOCK', 0, 'STREAMS', 'orders', '$');
  await until(async () => /blocked_clients:1\r/.test(await redis.info('clients')));
  await until(() => told.length === done.length);
  await ask('restart');
  await until(async () => /pubsub_clients:1\r|pubsub_channels:1\r/.test(await redis.info()));

  const mine = await redis.xreadgroup('GROUP', 'shop', 'anna', 'STREAMS', 'orders', 0);
  assert.deepEqual(mine[0][1].map(([, [, order]]) => order), ['1', '3', '5', '7', '9']);
  const [[, rest]] = await redis.xreadgroup('GROUP', 'shop', 'bert', 'STREAMS', 'orders', '>');
  await finish(redis, 'bert', rest);

  // What anna left lying, bert takes over.
  assert.deepEqual(await redis.xpending('orders', 'shop'), [5, ids[1], ids[9], [['anna', '5']]]);
  const [cursor, claimed] = await redis.xautoclaim('orders', 'shop', 'bert', 0, '0', 'COUNT', 3);
  assert.equal(cursor, ids[7]);
  await finish(redis, 'bert', claimed);
  const left = (await redis.xpending('orders', 'shop', '-', '+', 10, 'anna')).map(([id]) => id);
  await finish(redis, 'bert', await redis.xclaim('orders', 'shop', 'bert', 0, ...left));

  assert.deepEqual(done.sort((a, b) => a - b), [...Array(ORDERS).keys()]);
  assert.equal((await redis.xpending('orders', 'shop'))[0], 0);
  await until(() => told.length === ORDERS);

  // The blocked read was sent again by the library, and is still worth waiting for.
  await until(async () => /blocked_clients:1\r/.test(await redis.info('clients')));
  const last = await redis.xadd('orders', '*', 'order', 'last');
  assert.deepEqual(await next, [['orders', [[last, ['order', 'last']]]]]);

  assert.equal(await redis.xtrim('orders', 'MAXLEN', 1), ORDERS);
  assert.equal(await redis.xdel('orders', last), 1);
  for (const client of [redis, waiting, subscriber]) await client.quit();
  hangUp();
}

main(process.argv.slice(2));
