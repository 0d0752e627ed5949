// A shop's orders on a stream: one producer, a group of workers, a server that restarts under them.
//
//   node node_redis_orders.cjs LIBRARY PORT PROTOCOL
'use strict';

const assert = require('node:assert/strict');
const { connect } = require('./connect.cjs');
const { ask, until, hangUp } = require('./talk.cjs');

const ORDERS = 20;

async function main([library, port, protocol]) {
  const open = () => connect(library, Number(port), Number(protocol));
  const [client, waiting, subscriber] = await Promise.all([open(), open(), open()]);

  const told = [];
  await subscriber.subscribe('done', (order) => told.push(order));

  await client.xGroupCreate('orders', 'shop', '$', { MKSTREAM: true });
  await assert.rejects(client.xGroupCreate('orders', 'shop', '$'), /BUSYGROUP/);

  const ids = await Promise.all([...Array(ORDERS).keys()].map((order) => client.xAdd(
    'orders', '*', { order: String(order), note: 'für später' },
    { TRIM: { strategy: 'MAXLEN', strategyModifier: '~', threshold: 1000 } })));
  assert.equal(await client.xLen('orders'), ORDERS);

  // Half of the orders go to anna, who does the even ones and then loses her connection.
  const done = [];
  const finish = async (messages) => {
    for (const { id, message } of messages) {
      const [acked] = await client
        .multi().xAck('orders', 'shop', id).publish('done', message.order).exec();
      assert.equal(acked, 1);
      done.push(Number(message.order));
    }
  };
  const read = async (consumer, id, options) => {
    const streams = await client.xReadGroup('shop', consumer, { key: 'orders', id }, options);
    return streams[0].messages;
  };
  const first = await read('anna', '>', { COUNT: ORDERS / 2, BLOCK: 1000 });
  assert.equal(first[0].id, ids[0]);
  assert.deepEqual({ ...first[0].message }, { order: '0', note: 'für später' });
  await finish(first.filter(({ message }) => message.order % 2 === 0));
  await until(() => told.length === done.length);

  // A reader stands blocked when the server goes: the library says so, and the reader asks again.
  const readNext = (id) => waiting.xRead({ key: 'orders', id }, { BLOCK: 0 });
  const interrupted = assert.rejects(readNext('$'), /Socket closed|Disconnects|socket/i);
  await until(async () => /blocked_clients:1\r/.test(await client.info('clients')));
  await ask('restart');
  await interrupted;
  const next = readNext('$');
  await until(async () => /pubsub_clients:1\r|pubsub_channels:1\r/.test(await client.info()));

  const mine = await read('anna', '0');
  assert.deepEqual(mine.map(({ message }) => message.order), ['1', '3', '5', '7', '9']);
  await finish(await read('bert', '>'));

  // What anna left lying, bert takes over.
  const pending = await client.xPending('orders', 'shop');
  assert.deepEqual(
    [pending.pending, pending.firstId, pending.lastId, { ...pending.consumers[0] }],
    [5, ids[1], ids[9], { name: 'anna', deliveriesCounter: 5 }]);
  const claimed = await client.xAutoClaim('orders', 'shop', 'bert', 0, '0', { COUNT: 3 });
  assert.equal(claimed.nextId, ids[7]);
  await finish(claimed.messages);
  const rows = await client.xPendingRange('orders', 'shop', '-', '+', 10, { consumer: 'anna' });
  assert.deepEqual(rows.map((row) => row.deliveriesCounter), [2, 2]);
  await finish(await client.xClaim('orders', 'shop', 'bert', 0, rows.map(({ id }) => id)));

  assert.deepEqual(done.sort((a, b) => a - b), [...Array(ORDERS).keys()]);
  assert.equal((await client.xPending('orders', 'shop')).pending, 0);
  await until(() => told.length === ORDERS);

  await until(async () => /blocked_clients:1\r/.test(await client.info('clients')));
  const last = await client.xAdd('orders', '*', { order: 'last' });
  assert.equal((await next)[0].messages[0].id, last);

  assert.equal(await client.xTrim('orders', 'MAXLEN', 1), ORDERS);
  assert.equal(await client.xDel('orders', last), 1);
  for (const one of [client, waiting, subscriber]) await one.close();
  hangUp();
}

main(process.argv.slice(2));
