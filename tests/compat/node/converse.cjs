// Calls methods of a client one after another, as told on standard input: [[method, arg, ...], ...].
// Prints [replies], with {"error": "..."} for those that failed. With several ports, as 1,2, it does
// so with one server after another, and prints a line for each.
//
//   node converse.cjs LIBRARY PORTS PROTOCOL
'use strict';

const { connect } = require('./connect.cjs');

async function converse(client, calls) {
  const replies = [];
  for (const [method, ...args] of calls) {
    try {
      const reply = await client[method](...args);
      replies.push(reply === undefined ? null : reply);
    } catch (error) {
      replies.push({ error: `${error.name}: ${error.message}` });
    }
  }
  return replies;
}

async function main([library, ports, protocol]) {
  const calls = JSON.parse(require('node:fs').readFileSync(0, 'utf8'));
  for (const port of ports.split(',')) {
    const client = await connect(library, Number(port), Number(protocol));
    console.log(JSON.stringify(await converse(client, calls)));
    await client.quit();
  }
}

main(process.argv.slice(2));
