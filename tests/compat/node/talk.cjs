// How a program speaks with the test that started it: lines of JSON, one out, one in.
'use strict';

const lines = require('node:readline').createInterface({ input: process.stdin });
const waiting = lines[Symbol.asyncIterator]();

// Says something and waits until the test answers.
async function ask(what) {
  console.log(JSON.stringify(what));
  return JSON.parse((await waiting.next()).value);
}

// Polls until `look` gives something true; the test's own deadline ends it otherwise.
async function until(look) {
  for (;;) {
    const seen = await look();
    if (seen) return seen;
    await new Promise((go) => setTimeout(go, 10));
  }
}

const hangUp = () => lines.close();

module.exports = { ask, until, hangUp };
