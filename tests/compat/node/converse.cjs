// Calls methods of a client one after another, as told on standard input: [[method, arg, ...], ...].
// Prints [replies], with {"error": "..."} for those that failed.
//
//   node converse.cjs LIBRARY PORT PROTOCOL
'use strict';

const { connect } = require('./connect.cjs');

async function main([library, port, protocol]) {
  const client = await connect(library, Number(port), Number(protocol));
  const replies = [];
  for (const [method, ...args] of JSON.parse(require('node:fs').readFileSync(0, 'utf8'))) {
    try {
      const reply = await client[method](...args);
      replies.push(reply === undefined ? null : reply);
    } catch (error) {
      replies.push({ error: `${error.name}: ${error.message}` });
    }
  }
  console.log(JSON.stringify(replies));
  await client.quit();
}

main(process.argv.slice(2));
