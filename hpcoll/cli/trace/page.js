"use strict";
(async () => {
  const $ = (id) => document.getElementById(id);
  const about = JSON.parse($("about").textContent);
  const AXIS = 22, HOST = 18, GAP = 6, HEIGHT = { region: 13, call: 20, flight: 14, step: 13, other: 16 }, MOST_ARROWS = 400;
  const canvas = $("timeline"), overview = $("overview"), scroller = $("scroller"), heat = $("heat"), tip = $("tip");

  // Columns: arrays by name, one after the other, compressed.
  async function unpacked() {
    const bytes = Uint8Array.from(atob($("columns").textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const buffer = await new Response(stream).arrayBuffer();
    const kinds = { f8: Float64Array, f4: Float32Array, i4: Int32Array }, columns = {};
    let at = 0;
    for (const [name, kind, count] of about.columns) {
      columns[name] = new kinds[kind](buffer, at, count);
      at += columns[name].byteLength;
    }
    return columns;
  }
  let c;
  try {
    c = await unpacked();
  } catch (error) {
    $("told").textContent = `The timeline cannot be shown: this browser does not decompress its data (${error.message}).`;
    return;
  }

  // Sums of lengths and waits up to each slice: what lies in one pixel is a difference of two.
  const total = c.start.length, lengths = new Float64Array(total + 1), waits = new Float64Array(total + 1);
  for (let i = 0; i < total; i++) {
    lengths[i + 1] = lengths[i] + c.length[i];
    waits[i + 1] = waits[i] + c.waited[i];
  }

  // Tracks, from top to bottom; a host has a heading.
  const tracks = about.tracks.map(([kind, row, first, end]) => ({ kind, row, first, end, top: 0 }));
  let bottom = 0, before = null;
  for (const track of tracks) {
    const row = about.rows[track.row];
    if (!before || before.host !== row.host) bottom += HOST + (before ? GAP : 0);
    else if (before.rank !== row.rank || row.rank < 0) bottom += track.row === before.row ? 0 : GAP;
    track.heading = !before || before.host !== row.host;
    track.labelled = !before || before.label !== row.label || track.heading;
    track.top = bottom;
    track.height = HEIGHT[track.kind];
    bottom += track.height + 1;
    before = { host: row.host, rank: row.rank, row: track.row, label: row.label };
  }
  const ofRank = new Map();
  for (const track of tracks) {
    const rank = about.rows[track.row].rank;
    if (rank >= 0 && (track.kind === "call" || !ofRank.has(rank))) ofRank.set(rank, track);
  }

  let view = [0, about.span], width = 0, left = 0, ratio = 1, marked = -1, colours = {};
  const SHORTEST = 0.05; // microseconds across the timeline

  function lower(column, value, from, to) {
    while (from < to) {
      const middle = (from + to) >> 1;
      if (column[middle] < value) from = middle + 1;
      else to = middle;
    }
    return from;
  }
  const end = (i) => c.start[i] + c.length[i];
  // Slices of a track do not overlap: the one before the first that begins in view may reach into it.
  function firstSeen(track, time) {
    const i = lower(c.start, time, track.first, track.end);
    return i > track.first && end(i - 1) > time ? i - 1 : i;
  }
  const x = (time) => left + ((time - view[0]) / (view[1] - view[0])) * (width - left);
  const timeAt = (pixel) => view[0] + ((pixel - left) / (width - left)) * (view[1] - view[0]);

  function style() {
    const found = getComputedStyle(document.documentElement);
    for (const name of ["paper", "ink", "faint", "rule", "tint", "moved", "waited", "flight", "flight-ink", "region", "region-ink", "step",
      "step-ink", "other", "other-ink", "arrow", "on-colour"]) colours[name] = found.getPropertyValue(`--${name}`).trim();
  }

  function duration(us) {
    const [factor, unit] = Math.abs(us) >= 1e6 ? [1e-6, "s"] : Math.abs(us) >= 1e3 ? [1e-3, "ms"] : Math.abs(us) >= 1 || us === 0 ? [1, "us"] : [1e3, "ns"];
    return `${+(us * factor).toPrecision(4)} ${unit}`;
  }
  function nbytes(n) {
    let unit = 0;
    for (; n >= 1023.5 && unit < 4; unit++) n /= 1024;
    return `${+n.toPrecision(3)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
  }

  function fitted(element, height) {
    const wide = element.clientWidth || element.parentElement.clientWidth;
    ratio = window.devicePixelRatio || 1;
    if (element.width !== Math.round(wide * ratio) || element.height !== Math.round(height * ratio)) {
      element.width = Math.round(wide * ratio);
      element.height = Math.round(height * ratio);
      element.style.height = `${height}px`;
    }
    const context = element.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, wide, height);
    context.font = '11px "DejaVu Sans", Verdana, Arial, sans-serif';
    context.textBaseline = "middle";
    return [context, wide];
  }

  const fills = { region: ["region", "region-ink"], call: ["moved", "on-colour"], flight: ["flight", "flight-ink"], step: ["step", "step-ink"], other: ["other", "other-ink"] };

  function drawTrack(context, track, top) {
    const [fill, ink] = fills[track.kind], height = track.height, scale = (width - left) / (view[1] - view[0]);
    let i = firstSeen(track, view[0]);
    while (i < track.end && c.start[i] < view[1]) {
      const from = Math.max(x(c.start[i]), left), to = Math.min(x(end(i)), width);
      if (to - from >= 1.5) {
        context.fillStyle = colours[fill];
        context.fillRect(from, top, to - from, height);
        const waited = Math.min(x(c.start[i] + c.waited[i]), width) - from;
        if (waited > 0) {
          context.fillStyle = colours.waited;
          context.fillRect(from, top, waited, height);
        }
        if (to - from > 30 && height > 11) label(context, about.kinds[c.kind[i]][0], from, to, top + height / 2 + 0.5, ink);
        if (to - from > 4) {
          context.fillStyle = colours.paper;
          context.fillRect(to - 0.5, top, 0.5, height);
        }
        i++;
        continue;
      }
      const pixel = Math.floor(from);
      let j = Math.max(i + 1, lower(c.start, timeAt(pixel + 1), i, track.end));
      if (j - 1 > i && x(end(j - 1)) - x(c.start[j - 1]) >= 1.5) j--; // a long one that begins in the same pixel
      const share = Math.min(1, (lengths[j] - lengths[i]) * scale), of = (waits[j] - waits[i]) / Math.max(lengths[j] - lengths[i], 1e-12);
      const tall = Math.max(1, share * height), wait = tall * of;
      context.fillStyle = colours[fill];
      context.fillRect(pixel, top + height - tall, 1, tall - wait);
      context.fillStyle = colours.waited;
      context.fillRect(pixel, top + height - wait, 1, wait);
      i = j;
    }
    context.globalAlpha = 1;
  }

  function label(context, text, from, to, y, ink) {
    const room = to - from - 8, most = Math.floor(room / 6.2);
    if (most < 2) return;
    context.fillStyle = colours[ink];
    context.fillText(text.length <= most ? text : `${text.slice(0, most - 1)}…`, from + 4, y, room);
  }

  function ticks(context, height) {
    const across = view[1] - view[0], wanted = across / Math.max(2, (width - left) / 110);
    const power = 10 ** Math.floor(Math.log10(wanted)), step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= wanted);
    context.fillStyle = colours.paper;
    context.fillRect(0, 0, width, AXIS);
    for (let n = Math.ceil(view[0] / step); n * step <= view[1]; n++) {
      const at = Math.round(x(n * step)) + 0.5, digits = Math.max(0, Math.ceil(Math.log10(Math.abs(n * step) / step || 1)) + 1);
      context.fillStyle = colours.rule;
      context.fillRect(at - 0.5, AXIS - 5, 1, height);
      context.fillStyle = colours.faint;
      const text = exact(n * step, digits);
      if (at + context.measureText(text).width + 4 < width) context.fillText(text, at + 3, 9);
    }
  }
  function exact(us, digits) {
    const [factor, unit] = Math.abs(us) >= 1e6 ? [1e-6, "s"] : Math.abs(us) >= 1e3 ? [1e-3, "ms"] : [1, "us"];
    return us === 0 ? "0" : `${+(us * factor).toPrecision(Math.min(15, Math.max(2, digits)))} ${unit}`;
  }

  function draw() {
    width = canvas.parentElement.clientWidth;
    left = width < 600 ? 58 : 110;
    const height = Math.min(bottom + AXIS + 8, Math.max(140, window.innerHeight * 0.72 - 2));
    $("spacer").style.height = `${bottom + AXIS + 8}px`;
    const [context] = fitted(canvas, height), scroll = scroller.scrollTop, off = AXIS + 4 - scroll;
    ticks(context, height);
    const seen = tracks.filter((track) => track.top + off + track.height > AXIS && track.top + off - HOST < height);
    context.save();
    context.beginPath();
    context.rect(0, AXIS, width, height);
    context.clip();
    for (const track of seen) {
      const top = track.top + off, row = about.rows[track.row];
      if (track.heading) {
        context.fillStyle = colours.tint;
        context.fillRect(0, top - HOST, width, HOST - 2);
        context.fillStyle = colours.faint;
        context.fillText(about.hosts[row.host], 6, top - HOST / 2 - 1, width - 12);
      }
      if (track.labelled || track.kind === "call") {
        context.fillStyle = track.kind === "call" || row.rank < 0 ? colours.ink : colours.faint;
        const text = track.kind === "call" || row.rank < 0 ? row.label : track.kind === "flight" ? "in flight" : "";
        context.fillText(text, 8, top + track.height / 2 + 0.5, left - 12);
      }
      context.save();
      context.beginPath();
      context.rect(left, AXIS, width - left, height);
      context.clip();
      drawTrack(context, track, top);
      context.restore();
    }
    arrows(context, seen, off);
    context.restore();
    drawOverview();
  }

  function arrows(context, seen, off) {
    const found = [];
    for (const track of seen) {
      if (track.kind !== "call") continue;
      const from = firstSeen(track, view[0]), to = lower(c.start, view[1], from, track.end);
      if (to - from > MOST_ARROWS) return mark(context, off);
      for (let i = from; i < to; i++) if (c.owner[i] >= 0 && x(c.start[i] + c.waited[i]) - x(c.start[i]) > 6) found.push([i, track]);
      if (found.length > MOST_ARROWS) return mark(context, off);
    }
    for (const [i, track] of found) arrow(context, i, track, off, i === marked ? 2.5 : 1);
    return mark(context, off);
  }
  function mark(context, off) {
    const track = tracks.find((one) => one.first <= marked && marked < one.end);
    if (!track) return;
    if (c.owner[marked] >= 0) arrow(context, marked, track, off, 2.5);
    const from = Math.max(x(c.start[marked]), left), to = Math.min(x(end(marked)), width);
    if (to < left || from > width) return;
    context.strokeStyle = colours.ink;
    context.lineWidth = 1.5;
    context.strokeRect(from - 0.5, track.top + off - 0.5, Math.max(to - from, 2) + 1, track.height + 1);
  }
  function arrow(context, i, track, off, thick) {
    const owner = ofRank.get(c.owner[i]), at = x(c.start[i] + c.waited[i]);
    if (!owner || owner === track || at < left || at > width) return;
    const down = owner.top < track.top, from = owner.top + off + owner.height / 2;
    const to = track.top + off + (down ? 0 : track.height), sign = down ? -1 : 1;
    context.strokeStyle = context.fillStyle = colours.arrow;
    context.lineWidth = thick;
    context.beginPath();
    context.moveTo(at, from);
    context.lineTo(at, to + 5 * sign);
    context.stroke();
    context.beginPath();
    context.moveTo(at, to);
    context.lineTo(at - 3.5, to + 7 * sign);
    context.lineTo(at + 3.5, to + 7 * sign);
    context.fill();
  }

  // The overview: which part of the time the ranks waited or moved data, over the whole run; a frame shows the part in view.
  let shares = null;
  function drawOverview() {
    const [context, wide] = fitted(overview, 44), calls = tracks.filter((track) => !["region", "flight", "step"].includes(track.kind));
    if (!shares || shares.length !== wide) {
      shares = Array.from({ length: wide }, () => [0, 0]);
      for (const track of calls) {
        let i = track.first;
        for (let pixel = 0; pixel < wide && i < track.end; pixel++) {
          const j = lower(c.start, ((pixel + 1) / wide) * about.span, i, track.end);
          for (const [k, sums] of [[0, waits], [1, lengths]]) spread(shares, pixel, k, sums[j] - sums[i], about.span / wide);
          i = j;
        }
      }
    }
    const most = 42 / Math.max(1, calls.length);
    for (let pixel = 0; pixel < wide; pixel++) {
      const [wait, all] = shares[pixel];
      context.fillStyle = colours.moved;
      context.fillRect(pixel, 43 - all * most, 1, all * most);
      context.fillStyle = colours.waited;
      context.fillRect(pixel, 43 - wait * most, 1, wait * most);
    }
    const from = (view[0] / about.span) * wide, to = (view[1] / about.span) * wide;
    context.globalAlpha = 0.75;
    context.fillStyle = colours.paper;
    context.fillRect(0, 0, from, 44);
    context.fillRect(to, 0, wide - to, 44);
    context.globalAlpha = 1;
    context.strokeStyle = colours.ink;
    context.strokeRect(Math.min(from, wide - 3) + 0.5, 0.5, Math.max(to - from - 1, 2), 43);
  }
  // What begins in a pixel and is longer goes on in the next ones.
  function spread(found, pixel, k, sum, room) {
    for (; sum > 0 && pixel < found.length; pixel++) {
      const here = Math.min(sum, room);
      found[pixel][k] += here / room;
      sum -= here;
    }
  }

  function words(i) {
    const [name, comm, size, count, type, op, root, algorithm, at, region] = about.kinds[c.kind[i]];
    const number = c.number[i], lines = [name + (number >= 0 ? `, call ${number}` : "") + (comm ? ` on ${comm}` : "")];
    const what = [size >= 0 ? nbytes(size) : "", type + (count >= 0 ? `[${count}]` : ""), op, root >= 0 ? `root ${root}` : "", algorithm ? `by ${algorithm}` : ""];
    lines.push(what.filter(Boolean).join(", "), [at, region ? `in ${region}` : ""].filter(Boolean).join(", "));
    lines.push(`${duration(c.length[i])}, from ${exact(c.start[i], 9)}`);
    if (c.owner[i] >= 0) lines.push(`waits ${duration(c.waited[i])} for rank ${c.owner[i]}, then ${duration(c.length[i] - c.waited[i])}`);
    return lines.filter(Boolean).join("\n");
  }

  function sliceAt(px, py) {
    const y = py - AXIS - 4 + scroller.scrollTop, time = timeAt(px);
    const track = tracks.find((one) => one.top <= y && y < one.top + one.height + 1);
    if (!track || px < left || py < AXIS) return -1;
    const near = (3 * (view[1] - view[0])) / (width - left), i = firstSeen(track, time);
    if (i < track.end && c.start[i] <= time + near) return i;
    return i > track.first && end(i - 1) >= time - near ? i - 1 : -1;
  }
  function tell(i, px, py) {
    marked = i;
    tip.hidden = i < 0;
    if (i < 0) return;
    const track = tracks.find((one) => one.first <= i && i < one.end), row = about.rows[track.row];
    tip.textContent = `${row.label} on ${about.hosts[row.host]}\n${words(i)}`;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(px + 14, window.innerWidth - box.width - 6))}px`;
    tip.style.top = `${py + 18 + box.height > window.innerHeight ? Math.max(4, py - box.height - 12) : py + 18}px`;
  }

  let wanted = false;
  function redraw() {
    if (wanted) return;
    wanted = true;
    requestAnimationFrame(() => {
      wanted = false;
      draw();
    });
  }
  function show(from, to) {
    let across = Math.min(Math.max(to - from, SHORTEST), about.span || SHORTEST);
    const begin = Math.min(Math.max(from, 0), Math.max(0, about.span - across));
    view = [begin, begin + across];
    redraw();
  }
  function zoom(factor, at = (view[0] + view[1]) / 2) {
    show(at - (at - view[0]) * factor, at + (view[1] - at) * factor);
  }
  const pan = (share) => show(view[0] + share * (view[1] - view[0]), view[1] + share * (view[1] - view[0]));
  let next = 0;
  function longest() {
    if (!about.longest.length) return;
    const i = about.longest[next++ % about.longest.length], track = tracks.find((one) => one.first <= i && i < one.end);
    show(c.start[i] - c.length[i] * 0.5, end(i) + c.length[i] * 0.5);
    scroller.scrollTop = track.top - scroller.clientHeight / 2;
    marked = i;
    $("told").textContent = `${about.rows[track.row].label}: ${words(i).replaceAll("\n", "; ")}`;
    redraw();
  }

  // Pointers: one drags, two pinch.
  const pointers = new Map();
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, place(event));
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const now = place(event), old = pointers.get(event.pointerId);
    if (old && pointers.size === 1) {
      pan((old[0] - now[0]) / (width - left));
      if (event.pointerType === "mouse") scroller.scrollTop += old[1] - now[1];
    } else if (old && pointers.size === 2) {
      const other = [...pointers].find(([id]) => id !== event.pointerId)[1];
      zoom(Math.max(8, Math.abs(old[0] - other[0])) / Math.max(8, Math.abs(now[0] - other[0])), timeAt((now[0] + other[0]) / 2));
    }
    if (old) pointers.set(event.pointerId, now);
    tell(sliceAt(...now), event.clientX, event.clientY);
    redraw();
  });
  for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("pointerleave", () => {
    tell(-1);
    redraw();
  });
  canvas.addEventListener("dblclick", (event) => zoom(0.4, timeAt(place(event)[0])));
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.01), timeAt(place(event)[0]));
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) pan(((event.deltaX || event.deltaY) / (width - left)) * 1);
    else return;
    event.preventDefault();
  }, { passive: false });
  const keys = {
    ArrowLeft: () => pan(-0.2), a: () => pan(-0.2), ArrowRight: () => pan(0.2), d: () => pan(0.2), "+": () => zoom(0.5), "=": () => zoom(0.5),
    w: () => zoom(0.5), "-": () => zoom(2), s: () => zoom(2), 0: () => show(0, about.span), n: longest,
    Home: () => show(0, view[1] - view[0]), End: () => show(about.span - (view[1] - view[0]), about.span),
    ArrowUp: () => (scroller.scrollTop -= 60), ArrowDown: () => (scroller.scrollTop += 60),
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
    keys[event.key]();
    event.preventDefault();
  });
  const look = (event) => {
    const box = overview.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * about.span, half = (view[1] - view[0]) / 2;
    show(at - half, at + half);
  };
  overview.addEventListener("pointerdown", (event) => {
    overview.setPointerCapture(event.pointerId);
    look(event);
  });
  overview.addEventListener("pointermove", (event) => event.buttons && look(event));
  $("in").onclick = () => zoom(0.5);
  $("out").onclick = () => zoom(2);
  $("all").onclick = () => show(0, about.span);
  $("wait").onclick = longest;
  $("wait").hidden = !about.longest.length;
  scroller.addEventListener("scroll", redraw);

  // The heat map: a row for each rank that waits, a column for each that is awaited.
  function drawHeat() {
    if (!heat) return;
    const n = about.ranks.length, room = heat.parentElement.clientWidth, edge = 34;
    const cell = Math.max(1, Math.min(34, Math.floor((Math.min(room, 620) - edge) / n)));
    heat.style.width = `${edge + n * cell + 2}px`;
    const [context] = fitted(heat, edge + n * cell + 2), most = Math.max(...about.heat.map((one) => one[2]), 1e-12);
    const every = Math.ceil(22 / cell);
    context.fillStyle = colours.tint;
    context.fillRect(edge, edge, n * cell, n * cell);
    for (const [rank, owner, seconds] of about.heat) {
      context.globalAlpha = 0.12 + 0.88 * (seconds / most);
      context.fillStyle = colours.waited;
      context.fillRect(edge + owner * cell, edge + rank * cell, Math.max(1, cell - (cell > 4 ? 1 : 0)), Math.max(1, cell - (cell > 4 ? 1 : 0)));
    }
    context.globalAlpha = 1;
    context.fillStyle = colours.faint;
    for (let i = 0; i < n; i += every) {
      context.textAlign = "right";
      context.fillText(String(about.ranks[i]), edge - 5, edge + (i + 0.5) * cell);
      context.textAlign = "center";
      context.fillText(String(about.ranks[i]), edge + (i + 0.5) * cell, edge - 9);
    }
    context.textAlign = "left";
    heat.onpointermove = (event) => {
      const owner = Math.floor((event.offsetX - edge) / cell), rank = Math.floor((event.offsetY - edge) / cell);
      const found = about.heat.find((one) => one[0] === rank && one[1] === owner);
      const inside = owner >= 0 && owner < n && rank >= 0 && rank < n;
      $("heat-told").textContent = inside ? `rank ${about.ranks[rank]} waited ${found ? duration(found[2] * 1e6) : "0 us"} for rank ${about.ranks[owner]}` : "";
    };
  }

  function everything() {
    style();
    shares = null;
    draw();
    drawHeat();
  }
  window.addEventListener("resize", everything);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", everything);
  everything();
  document.documentElement.dataset.drawn = String(total);
})();
