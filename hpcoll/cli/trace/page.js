"use strict";
(async () => {
  const $ = (id) => document.getElementById(id), about = JSON.parse($("about").textContent), { tracks, longest, span } = about;
  const AXIS = 22, MOST_ARROWS = 400, SHORTEST = 0.05; // SHORTEST: microseconds across the timeline
  const canvas = $("timeline"), overview = $("overview"), scroller = $("scroller"), heat = $("heat"), tip = $("tip"), columns = {};

  try { // columns: arrays by name, one after the other, compressed
    const bytes = Uint8Array.from(atob($("columns").textContent), (text) => text.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const buffer = await new Response(stream).arrayBuffer();
    let at = 0;
    for (const [name, type] of about.columns) {
      columns[name] = new window[type](buffer, at, about.slices);
      at += columns[name].byteLength;
    }
  } catch (error) {
    $("told").textContent = `The timeline cannot be shown: this browser does not decompress its data (${error.message}).`;
    return;
  }
  const { start, length, waited, owner, kind, number } = columns;
  // Sums up to each slice: what lies in one pixel is a difference of two.
  const summed = (column, sum = 0) => new Float64Array(about.slices + 1).map((_, i) => (sum += i && column[i - 1]));
  const lengths = summed(length), waits = summed(waited);

  let view = [0, span], width, left, context, marked = -1, colours = {};
  const across = () => view[1] - view[0], pixels = (us) => (us / across()) * (width - left), end = (i) => start[i] + length[i];
  const x = (time) => left + pixels(time - view[0]), timeAt = (pixel) => view[0] + ((pixel - left) / (width - left)) * across();
  const clamp = (value, least, most) => Math.max(least, Math.min(value, most));
  const trackOf = (i) => tracks.find((track) => track.first <= i && i < track.end);

  function firstFrom(time, from, to) {
    while (from < to) {
      const middle = (from + to) >> 1;
      if (start[middle] < time) from = middle + 1;
      else to = middle;
    }
    return from;
  }
  // Slices of a track do not overlap: the one before the first that begins in view may reach into it.
  function firstSeen(track, time) {
    const i = firstFrom(time, track.first, track.end);
    return i > track.first && end(i - 1) > time ? i - 1 : i;
  }
  function duration(us, digits = 4) {
    const units = [[1e6, "s"], [1e3, "ms"], [1, "us"], [1e-3, "ns"]], [size, unit] = units.find(([one]) => us >= one) ?? units[3];
    return us ? `${+(us / size).toPrecision(digits)} ${unit}` : "0 us";
  }

  const colour = (name) => (colours[name] ??= getComputedStyle(document.documentElement).getPropertyValue(`--${name}`));
  function cleared(element, height) {
    const ratio = window.devicePixelRatio || 1;
    element.width = Math.round(element.clientWidth * ratio);
    element.height = Math.round(height * ratio);
    element.style.height = `${height}px`;
    context = element.getContext("2d");
    context.scale(ratio, ratio);
    context.font = '11px "DejaVu Sans", Verdana, Arial, sans-serif';
    context.textBaseline = "middle";
  }
  function fill(name, ...box) {
    context.fillStyle = colour(name);
    context.fillRect(...box);
  }
  function write(name, ...text) {
    context.fillStyle = colour(name);
    context.fillText(...text);
  }

  function drawTicks(height) {
    const least = across() / Math.max(2, (width - left) / 110), power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= least);
    for (let n = Math.ceil(view[0] / step); n * step <= view[1]; n++) {
      const at = Math.round(x(n * step)), text = n ? duration(n * step, clamp(Math.ceil(Math.log10(n)) + 1, 2, 15)) : 0;
      fill("rule", at, AXIS - 5, 1, height);
      if (at + 4.5 + context.measureText(text).width < width) write("faint", text, at + 3.5, 9);
    }
  }
  function drawTrack(track) {
    const { top, height } = track;
    for (let i = firstSeen(track, view[0]), next; i < track.end && start[i] < view[1]; i = next) {
      const from = Math.max(x(start[i]), left), wide = Math.min(x(end(i)), width) - from, name = about.kinds[kind[i]][0];
      next = i + 1;
      if (wide >= 1.5) {
        fill(track.kind, from, top, wide, height);
        fill("waited", from, top, Math.max(0, Math.min(x(start[i] + waited[i]), width) - from), height);
        const most = Math.floor((wide - 8) / 6.2), text = name.length <= most ? name : `${name.slice(0, most - 1)}…`;
        if (wide > 30) write(`${track.kind}-ink`, text, from + 4, top + height / 2 + 0.5, wide - 8);
        if (wide > 4) fill("paper", from + wide - 0.5, top, 0.5, height);
        continue;
      }
      const pixel = Math.floor(from);
      next = Math.max(next, firstFrom(timeAt(pixel + 1), i, track.end));
      if (next - 1 > i && x(end(next - 1)) - x(start[next - 1]) >= 1.5) next--; // a long one that begins in the same pixel
      const sum = lengths[next] - lengths[i], tall = clamp(pixels(sum) * height, 1, height);
      const wait = (tall * (waits[next] - waits[i])) / Math.max(sum, 1e-12);
      fill(track.kind, pixel, top + height - tall, 1, tall - wait);
      fill("waited", pixel, top + height - wait, 1, wait);
    }
  }
  function drawArrows(seen) {
    const late = [];
    for (const track of seen.filter((track) => track.kind === "call")) {
      const from = firstSeen(track, view[0]), to = firstFrom(view[1], from, track.end);
      if (to - from > MOST_ARROWS) return;
      for (let i = from; i < to; i++) if (owner[i] >= 0 && pixels(waited[i]) > 6) late.push([i, track]);
    }
    if (late.length <= MOST_ARROWS) for (const [i, track] of late) drawArrow(i, track, 1);
  }
  function drawArrow(i, track, thick) {
    const last = tracks[about.main[owner[i]]], at = x(start[i] + waited[i]);
    if (!last || last === track || at < left || at > width) return;
    const sign = last.top < track.top ? -1 : 1, to = track.top + (sign > 0 && track.height);
    context.strokeStyle = context.fillStyle = colour("arrow");
    context.lineWidth = thick;
    context.stroke(new Path2D(`M${at} ${last.top + last.height / 2}V${to + 5 * sign}`));
    context.fill(new Path2D(`M${at} ${to}l-3.5 ${7 * sign}h7`));
  }
  function drawMarked(track) {
    drawArrow(marked, track, 2.5);
    const from = Math.max(x(start[marked]), left), to = Math.min(x(end(marked)), width);
    context.strokeStyle = colour("ink");
    context.lineWidth = 1.5;
    if (to >= left && from <= width) context.strokeRect(from - 0.5, track.top - 0.5, Math.max(to - from, 2) + 1, track.height + 1);
  }
  function draw() {
    width = canvas.clientWidth;
    left = width < 600 ? 58 : 110;
    const height = Math.min(about.height, Math.max(140, window.innerHeight * 0.72 - 2)), scroll = scroller.scrollTop;
    cleared(canvas, height);
    drawTicks(height);
    context.rect(0, AXIS, width, height);
    context.clip();
    context.translate(0, -scroll);
    for (const [host, top] of about.hosts) {
      fill("tint", 0, top, width, 16);
      write("faint", host, 6, top + 8, width - 12);
    }
    const seen = tracks.filter(({ top, height: tall }) => top + tall > scroll + AXIS && top < scroll + height);
    for (const track of seen) {
      write("ink", track.label, 8, track.top + track.height / 2 + 0.5, left - 12);
      drawTrack(track);
    }
    drawArrows(seen);
    if (marked >= 0) drawMarked(trackOf(marked));
    $("frame").style.left = `min(${(view[0] / span) * 100}%, 100% - 3px)`;
    $("frame").style.width = `${(across() / span) * 100}%`;
  }
  // The heat map: a row for each rank that waits, a column for each that is awaited.
  function drawHeat() {
    if (!heat) return;
    const { ranks } = about, n = ranks.length, edge = 34, most = Math.max(...about.heat.map((entry) => entry[2]), 1e-12);
    const cell = clamp(Math.floor((Math.min(heat.parentElement.clientWidth, 620) - edge) / n), 1, 34), square = cell - (cell > 4);
    heat.style.width = `${edge + n * cell + 2}px`;
    cleared(heat, edge + n * cell + 2);
    fill("tint", edge, edge, n * cell, n * cell);
    for (const [rank, awaited, seconds] of about.heat) {
      context.globalAlpha = 0.12 + 0.88 * (seconds / most);
      fill("waited", edge + awaited * cell, edge + rank * cell, square, square);
    }
    context.globalAlpha = 1;
    for (let i = 0; i < n; i += Math.ceil(22 / cell)) {
      const middle = edge + (i + 0.5) * cell;
      context.textAlign = "right";
      write("faint", ranks[i], edge - 5, middle);
      context.textAlign = "center";
      write("faint", ranks[i], middle, edge - 9);
    }
    heat.onpointermove = ({ offsetX, offsetY }) => {
      const [awaited, rank] = [offsetX, offsetY].map((offset) => Math.floor((offset - edge) / cell));
      const seconds = about.heat.find((entry) => entry[0] === rank && entry[1] === awaited)?.[2] ?? 0;
      const told = `rank ${ranks[rank]} waited ${duration(seconds * 1e6)} for rank ${ranks[awaited]}`;
      $("heat-told").textContent = awaited in ranks && rank in ranks ? told : "";
    };
  }
  let frame = 0;
  const redraw = () => (frame ||= requestAnimationFrame(() => draw(frame = 0)));
  function drawAll() {
    colours = {};
    draw();
    drawHeat();
  }

  function words(i) {
    const [name, comm, ...rest] = about.kinds[kind[i]], call = number[i] < 0 ? "" : `, call ${number[i]}`;
    const waits = `waits ${duration(waited[i])} for rank ${owner[i]}, then ${duration(length[i] - waited[i])}`;
    const times = [`${duration(length[i])}, from ${duration(start[i], 9)}`, ...(owner[i] < 0 ? [] : [waits])];
    return [trackOf(i).who, name + call + comm, ...rest, ...times];
  }
  function sliceAt(px, py) {
    const y = py + scroller.scrollTop, time = timeAt(px), near = timeAt(3) - timeAt(0);
    const track = tracks.find(({ top, height }) => top <= y && y <= top + height);
    if (!track || px < left || py < AXIS) return -1;
    const i = firstSeen(track, time);
    if (i < track.end && start[i] <= time + near) return i;
    return i > track.first && end(i - 1) >= time - near ? i - 1 : -1;
  }
  function point(i, px, py) {
    marked = i;
    tip.hidden = i < 0;
    redraw();
    if (i < 0) return;
    tip.textContent = words(i).join("\n");
    const box = tip.getBoundingClientRect(), below = py + 18 + box.height <= window.innerHeight;
    tip.style.left = `${clamp(px + 14, 4, window.innerWidth - box.width - 6)}px`;
    tip.style.top = `${below ? py + 18 : Math.max(4, py - box.height - 12)}px`;
  }
  function show(from, wanted) {
    const length = clamp(wanted, SHORTEST, span || SHORTEST), begin = clamp(from, 0, Math.max(0, span - length));
    view = [begin, begin + length];
    redraw();
  }
  const zoom = (factor, at = (view[0] + view[1]) / 2) => show(at - (at - view[0]) * factor, across() * factor);
  const pan = (time) => show(view[0] + time, across());
  let next = 0;
  function showLongest() {
    if (!longest.length) return;
    marked = longest[next++ % longest.length];
    show(start[marked] - length[marked] / 2, 2 * length[marked]);
    scroller.scrollTop = trackOf(marked).top - AXIS - scroller.clientHeight / 2;
    $("told").textContent = words(marked).join("; ");
  }

  // Pointers: one drags, two pinch.
  const pointers = new Map();
  canvas.onpointerdown = (event) => {
    pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
    canvas.setPointerCapture(event.pointerId);
  };
  canvas.onpointermove = (event) => {
    const { pointerId, offsetX, offsetY } = event, old = pointers.get(pointerId);
    const other = [...pointers].find(([id]) => id !== pointerId)?.[1];
    if (old) pointers.set(pointerId, [offsetX, offsetY]);
    if (old && other) {
      const [before, after] = [old[0], offsetX].map((at) => Math.max(8, Math.abs(at - other[0])));
      zoom(before / after, timeAt((offsetX + other[0]) / 2));
    } else if (old) {
      pan(timeAt(old[0]) - timeAt(offsetX));
      if (event.pointerType === "mouse") scroller.scrollTop += old[1] - offsetY;
    }
    point(sliceAt(offsetX, offsetY), event.clientX, event.clientY);
  };
  canvas.onpointerup = canvas.onpointercancel = (event) => pointers.delete(event.pointerId);
  canvas.onpointerleave = () => point(-1);
  canvas.ondblclick = (event) => zoom(0.4, timeAt(event.offsetX));
  canvas.addEventListener("wheel", (event) => {
    const { deltaX, deltaY } = event;
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(clamp(deltaY, -60, 60) * 0.01), timeAt(event.offsetX));
    else if (Math.abs(deltaX) > Math.abs(deltaY) || event.shiftKey) pan(timeAt(deltaX || deltaY) - timeAt(0));
    else return;
    event.preventDefault();
  }, { passive: false });
  overview.onpointerdown = overview.onpointermove = (event) => {
    if (!event.buttons) return;
    overview.setPointerCapture(event.pointerId);
    show((event.offsetX / overview.clientWidth) * span - across() / 2, across());
  };
  const nearer = () => zoom(0.5), farther = () => zoom(2), all = () => show(0, span);
  const back = () => pan(-across() / 5), ahead = () => pan(across() / 5);
  const keys = {
    ArrowLeft: back, a: back, ArrowRight: ahead, d: ahead, "+": nearer, "=": nearer, w: nearer, "-": farther, s: farther, 0: all,
    n: showLongest, Home: () => show(0, across()), End: () => show(span, across()),
  };
  canvas.onkeydown = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
    keys[event.key]();
    event.preventDefault();
  };
  for (const [id, action] of Object.entries({ in: nearer, out: farther, all, wait: showLongest })) $(id).onclick = action;
  $("wait").hidden = !longest.length;
  scroller.onscroll = redraw;
  window.onresize = window.matchMedia("(prefers-color-scheme: dark)").onchange = drawAll;
  drawAll();
  document.documentElement.dataset.drawn = about.slices;
})();
