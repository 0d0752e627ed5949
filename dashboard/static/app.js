// Local times, the chart of a stream's rate, following a stream, and the message while the server
// does not answer. Everything works without this file except for the chart and following.
"use strict";

const ROWS_MAX = 200;
const HISTORY_S = 900; // what the chart shows

function two(number) {
  return String(number).padStart(2, "0");
}

function localText(at) {
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

// UTC stays as the title of a time.
function showLocalTimes(root) {
  for (const one of root.querySelectorAll("time[datetime]:not([title])")) {
    const at = new Date(one.dateTime);
    if (!Number.isNaN(at.getTime())) {
      one.title = one.textContent;
      one.textContent = localText(at);
    }
  }
}

let chart = null;
let isTableOpen = false; // the table of rates, which is replaced with new ones

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function drawRates() {
  const place = document.querySelector(".chart");
  if (!place || typeof uPlot === "undefined") return;
  const rows = [...document.querySelectorAll("table.rates tbody tr")];
  const column = (number) => rows.map((row) => Number(row.cells[number].dataset.value));
  if (rows.length < 2) return;
  const axis = {
    stroke: colour("--soft"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { stroke: colour("--line"), width: 1 },
  };
  const times = column(0);
  const end = times[times.length - 1];
  if (chart) chart.destroy();
  chart = new uPlot(
    {
      width: Math.max(place.clientWidth - 16, 240),
      height: 180,
      legend: { show: false },
      scales: {
        x: { range: () => [end - HISTORY_S, end] },
        y: { range: (u, low, high) => [0, Math.max(high * 1.1, 1)] },
      },
      axes: [
        { ...axis, values: (u, moments) => moments.map((one) => localText(new Date(one * 1000)).slice(11, 16)) },
        { ...axis, size: 60 },
      ],
      series: [
        {},
        { stroke: colour("--accent"), width: 2, fill: colour("--accent-soft"), points: { show: false } },
      ],
    },
    [times, column(1)],
    place,
  );
}

let followed = null;

function cell(row, text, code) {
  const made = row.insertCell();
  if (code) {
    made.appendChild(document.createElement("code")).textContent = text;
  } else {
    made.textContent = text;
  }
  return made;
}

function addTime(row, ms) {
  const made = row.insertCell();
  const at = new Date(ms);
  if (ms === null || Number.isNaN(at.getTime())) {
    made.textContent = "-";
    return;
  }
  const time = made.appendChild(document.createElement("time"));
  time.dateTime = at.toISOString();
  time.title = `${at.toISOString().slice(0, 19).replace("T", " ")} UTC`;
  time.textContent = localText(at);
}

function addFields(row, fields, names) {
  const found = new Map();
  for (let at = 0; at + 1 < fields.length; at += 2) found.set(fields[at], fields[at + 1]);
  if (names && names.every((name) => found.has(name)) && found.size === names.length) {
    for (const name of names) cell(row, found.get(name));
    return;
  }
  const list = document.createElement("dl");
  list.className = "fields";
  for (let at = 0; at + 1 < fields.length; at += 2) {
    const pair = list.appendChild(document.createElement("div"));
    pair.appendChild(document.createElement("dt")).textContent = fields[at];
    pair.appendChild(document.createElement("dd")).textContent = fields[at + 1];
  }
  const made = row.insertCell();
  made.colSpan = names ? names.length : 1;
  made.appendChild(list);
}

function addEntry(table, entry) {
  const body = table.tBodies[0];
  const none = body.querySelector("td.none");
  if (none) none.parentElement.remove();
  const row = body.insertRow(0);
  row.className = "new";
  const heads = [...table.tHead.rows[0].cells].slice(2);
  const names = table.dataset.columns === "yes" ? heads.map((one) => one.dataset.name) : null;
  cell(row, entry.id, true);
  addTime(row, entry.ms);
  addFields(row, entry.fields, names);
  while (body.rows.length > ROWS_MAX) body.deleteRow(-1);
}

function follow(button, status) {
  const table = document.querySelector("table.entries");
  let count = 0;
  followed = new EventSource(button.dataset.source);
  status.textContent = "Following";
  button.setAttribute("aria-pressed", "true");
  followed.onopen = () => { status.textContent = `Following, ${count} new`; };
  followed.onmessage = (event) => {
    addEntry(table, JSON.parse(event.data));
    count += 1;
    status.textContent = `Following, ${count} new`;
  };
  followed.onerror = () => { status.textContent = "Interrupted; trying again"; };
  followed.addEventListener("problem", (event) => { // the server refused: it would do so again
    stopFollowing(button, status);
    status.textContent = JSON.parse(event.data);
  });
}

function stopFollowing(button, status) {
  followed.close();
  followed = null;
  status.textContent = "";
  button.setAttribute("aria-pressed", "false");
}

function offline(isOffline) {
  const message = document.getElementById("offline");
  if (message) message.hidden = !isOffline;
}

document.addEventListener("DOMContentLoaded", () => {
  showLocalTimes(document);
  drawRates();
  const button = document.getElementById("follow");
  const status = document.getElementById("followed");
  if (button) {
    button.addEventListener("click", () => {
      if (followed) stopFollowing(button, status);
      else follow(button, status);
    });
    button.disabled = false; // a click before this would do nothing
  }
  const at = document.getElementById("at");
  if (at) {
    at.form.addEventListener("submit", (event) => {
      event.preventDefault();
      location.assign(`${at.form.getAttribute("action")}?${at.dataset.query}&at=${encodeURIComponent(at.value)}`);
    });
  }
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.xhr.status >= 400) event.detail.shouldSwap = false;
    isTableOpen = document.querySelector("#rates details[open]") !== null;
  });
  document.body.addEventListener("htmx:afterSettle", () => {
    const details = document.querySelector("#rates details");
    if (details) details.open = isTableOpen;
    showLocalTimes(document);
    drawRates();
  });
  document.body.addEventListener("htmx:afterRequest", (event) => offline(!event.detail.successful));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawRates);
  addEventListener("resize", drawRates);
});
