"use strict";
// Values at the pointer, zoom, and a choice of slices. The page is complete without it.
(() => {
  const names = JSON.parse(document.getElementById("names").textContent);
  const tip = document.getElementById("tip");
  const SVG = "http://www.w3.org/2000/svg";
  document.documentElement.classList.add("scripted");

  // Numbers and names

  const number = (x) => (Number.isFinite(x) ? String(+x.toPrecision(4)).replace("-", "\u2212") : "\u2013");
  const text = (key, k) => {
    const axis = names.axes[key];
    return axis.texts ? axis.texts[k] : `[${k}]`;
  };
  const called = (key, k) => `${names.axes[key].name} ${text(key, k)}`;
  const within = (k, count) => Math.min(Math.max(Math.floor(k), 0), count - 1);

  // What is at the pointer

  function show(message, x, y) {
    tip.textContent = message;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = x + 14 + box.width > innerWidth ? x - box.width - 10 : x + 14;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${y + 16 + box.height > innerHeight ? y - box.height - 10 : y + 16}px`;
  }

  function hide() {
    tip.hidden = true;
    document.querySelectorAll(".cursor").forEach((mark) => mark.remove());
  }

  // Plots: the inner part of a picture, and which part of it is seen

  const plots = new Map();
  for (const root of document.querySelectorAll(".plot.along, .plot.cells")) {
    const view = root.querySelector(".view");
    const [, , w, h] = view.getAttribute("viewBox").split(" ").map(Number);
    const plot = {
      root, view, w, h, x: 0, y: 0, width: w, height: h, cells: root.classList.contains("cells"),
      xticks: root.querySelector(".xticks"), yticks: root.querySelector(".yticks"), data: root.dataset,
    };
    plot.first = [plot.xticks.innerHTML, plot.yticks.innerHTML];
    if (!plot.cells) plot.values = plot.data.y.split(",").map(Number);
    plots.set(root, plot);
    root.setAttribute("tabindex", "0");
  }
  const together = (plot) => [...plots.values()].filter((other) => other.data.group === plot.data.group);

  /** Where an event is: in pixels of the inner part as it was drawn. */
  function at(plot, event) {
    const box = plot.view.getBoundingClientRect();
    const frame = plot.root.querySelector(".frame").getBoundingClientRect();
    const px = (event.clientX - frame.left) / frame.width, py = (event.clientY - frame.top) / frame.height;
    if (px < 0 || px > 1 || py < 0 || py > 1 || !box) return null;
    return { x: plot.x + px * plot.width, y: plot.y + py * plot.height };
  }

  // The levels of an image are read from the file that is shown: a PNG with a palette, no filters

  async function levels(plot) {
    if (!plot.levels) plot.levels = unpacked(plot.view.querySelector("image").getAttribute("href"));
    return plot.levels;
  }

  async function unpacked(address) {
    const bytes = Uint8Array.from(atob(address.split(",")[1]), (c) => c.charCodeAt(0));
    const chunks = new DataView(bytes.buffer);
    const packed = [];
    let place = 8, width = 0, height = 0;
    while (place < bytes.length) {
      const size = chunks.getUint32(place);
      const kind = String.fromCharCode(...bytes.subarray(place + 4, place + 8));
      if (kind === "IHDR") [width, height] = [chunks.getUint32(place + 8), chunks.getUint32(place + 12)];
      if (kind === "IDAT") packed.push(bytes.subarray(place + 8, place + 8 + size));
      place += size + 12;
    }
    const stream = new Blob(packed).stream().pipeThrough(new DecompressionStream("deflate"));
    const rows = new Uint8Array(await new Response(stream).arrayBuffer());
    return { width, height, at: (i, j) => rows[i * (width + 1) + 1 + j] };
  }

  function valueOf(data, level) {
    if (level === 0) return "missing";
    if (data.kind === "shares") {
      const share = (k) => `${number(100 * (k / (names.steps - 1)) ** 2)}%`;
      const high = Math.floor((level - 1) / names.steps), low = (level - 1) % names.steps;
      return `about ${share(high)} too high, ${share(low)} too low`;
    }
    const from = Number(data.from), to = Number(data.to);
    const value = number(from + ((level - 1) / 254) * (to - from));
    return level === 1 ? `${value} or less` : level === 255 ? `${value} or more` : `about ${value}`;
  }

  async function overCells(plot, point, event) {
    const found = await levels(plot);
    const j = within((point.x / plot.w) * found.width, found.width);
    const i = within((point.y / plot.h) * found.height, found.height);
    const row = plot.data.up ? found.height - 1 - i : i;
    const lines = [`${called(plot.data.rows, row)}, ${called(plot.data.columns, j)}`];
    const group = together(plot);
    for (const other of plot.data.kind === "value" ? group : [plot]) {
      const title = other.root.querySelector(".title").textContent;
      const value = valueOf(other.data, (await levels(other)).at(i, j));
      lines.push(plot.data.kind === "value" ? `${title}: ${value}` : value);
      mark(other, (j / found.width) * plot.w, (i / found.height) * plot.h, plot.w / found.width,
        plot.h / found.height);
    }
    show(lines.join("\n"), event.clientX, event.clientY);
  }

  function mark(plot, x, y, width, height) {
    plot.view.querySelectorAll(".cursor").forEach((old) => old.remove());
    const box = document.createElementNS(SVG, "path");
    box.setAttribute("class", "cursor");
    box.setAttribute("d", `M${x} ${y}h${width}v${height}h${-width}z`);
    plot.view.append(box);
  }

  function overValues(plot, point, event) {
    const count = plot.values.length;
    const k = within((point.x / plot.w) * count, count);
    const value = plot.values[k], unit = plot.data.unit || "";
    let line = `${called(plot.data.axis, k)}\n${number(value)}${unit}`;
    if (plot.data.low) {
      const [low, high] = [plot.data.low, plot.data.high].map((list) => Number(list.split(",")[k]));
      line += ` (${number(low)} to ${number(high)})`;
    }
    const target = targetOf(plot, k);
    if (target) line += "\nclick to see this slab";
    plot.root.style.cursor = target ? "pointer" : "";
    const [low, high] = plot.data.scale.split(",").map(Number);
    const y = plot.h * (1 - (Math.min(Math.max(value, low), high) - low) / (high - low));
    mark(plot, ((k + 0.5) / count) * plot.w, 0, 0, plot.h);
    if (Number.isFinite(y)) plot.view.querySelector(".cursor").setAttribute(
      "d", `M${((k + 0.5) / count) * plot.w} 0V${plot.h}M0 ${y}H${plot.w}`);
    show(line, event.clientX, event.clientY);
  }

  function targetOf(plot, k) {
    const target = plot.data.targets ? plot.data.targets.split(" ")[k] : "-";
    return target === "-" ? null : target;
  }

  // Zoom: all pictures of a group show the same part

  function seen(plot, x, y, width, height) {
    width = Math.min(Math.max(width, plot.w / 5000), plot.w);
    height = Math.min(Math.max(height, plot.h / 5000), plot.h);
    x = Math.min(Math.max(x, 0), plot.w - width);
    y = Math.min(Math.max(y, 0), plot.h - height);
    const share = [x / plot.w, y / plot.h, width / plot.w, height / plot.h];
    for (const other of together(plot)) {
      Object.assign(other, { x: share[0] * other.w, width: share[2] * other.w });
      if (other.cells) Object.assign(other, { y: share[1] * other.h, height: share[3] * other.h });
      redraw(other);
    }
    hide();
  }

  /** A part of an image that ends between cells. */
  function snapped(plot, x, y, width, height) {
    if (!plot.cells) return [x, y, width, height];
    const cell = [plot.w / names.axes[plot.data.columns].count, plot.h / names.axes[plot.data.rows].count];
    const left = Math.floor(x / cell[0]) * cell[0], top = Math.floor(y / cell[1]) * cell[1];
    return [left, top, Math.ceil((x + width) / cell[0]) * cell[0] - left, Math.ceil((y + height) / cell[1]) * cell[1] - top];
  }

  function redraw(plot) {
    plot.view.setAttribute("viewBox", `${plot.x} ${plot.y} ${plot.width} ${plot.height}`);
    const whole = plot.width > 0.999 * plot.w && plot.height > 0.999 * plot.h;
    const columns = plot.cells ? plot.data.columns : plot.data.axis;
    if (whole) {
      plot.xticks.innerHTML = plot.first[0];
      plot.yticks.innerHTML = plot.first[1];
    } else {
      ticks(plot.xticks, columns, plot.x / plot.w, plot.width / plot.w, plot.w, false, false);
      if (plot.cells) {
        ticks(plot.yticks, plot.data.rows, plot.y / plot.h, plot.height / plot.h, plot.h, true, plot.data.up);
      }
    }
    const tools = plot.root.closest("figure").querySelector(`.tools[data-group="${plot.data.group}"]`);
    if (tools) tools.querySelector(".whole").disabled = whole;
  }

  function ticks(group, key, from, share, length, vertical, up) {
    const axis = names.axes[key], count = axis.count, most = vertical ? 5 : 4;
    const step = Math.max(1, Math.ceil((share * count) / most));
    group.replaceChildren();
    for (let k = 0; k < count; k += step) {
      const where = ((up ? count - 1 - k : k) + 0.5) / count;
      const place = ((where - from) / share) * length;
      if (place < 0 || place > length) continue;
      const tick = document.createElementNS(SVG, "g"), line = document.createElementNS(SVG, "line");
      const words = document.createElementNS(SVG, "text");
      tick.setAttribute("transform", vertical ? `translate(0 ${place})` : `translate(${place} 0)`);
      line.setAttribute(vertical ? "x2" : "y2", vertical ? -4 : 4);
      words.setAttribute(vertical ? "x" : "y", vertical ? -7 : 16);
      if (vertical) words.setAttribute("dy", "0.34em");
      const full = axis.texts ? axis.texts[k] : String(k);
      words.textContent = full.length > 14 ? `${full.slice(0, 7)}\u2026${full.slice(-6)}` : full;
      tick.append(line, words);
      group.append(tick);
    }
  }

  const scaled = (plot, factor, point) => {
    const p = point || { x: plot.x + plot.width / 2, y: plot.y + plot.height / 2 };
    seen(plot, p.x - (p.x - plot.x) * factor, p.y - (p.y - plot.y) * factor, plot.width * factor,
      plot.height * factor);
  };
  const whole = (plot) => seen(plot, 0, 0, plot.w, plot.h);
  const moved = (plot, dx, dy) => seen(plot, plot.x + dx * plot.width, plot.y + dy * plot.height, plot.width, plot.height);

  const KEYS = {
    "+": (plot) => scaled(plot, 0.5), "-": (plot) => scaled(plot, 2), 0: whole,
    ArrowLeft: (plot) => moved(plot, -0.25, 0), ArrowRight: (plot) => moved(plot, 0.25, 0),
    ArrowUp: (plot) => moved(plot, 0, -0.25), ArrowDown: (plot) => moved(plot, 0, 0.25),
  };

  for (const plot of plots.values()) {
    const { root } = plot;
    let begin = null, area = null;
    root.addEventListener("pointermove", (event) => {
      const point = at(plot, event);
      if (begin && area && point) return stretch(point);
      if (!point) return hide();
      return plot.cells ? overCells(plot, point, event) : overValues(plot, point, event);
    });
    root.addEventListener("pointerleave", hide);
    root.addEventListener("pointerdown", (event) => {
      begin = event.pointerType === "touch" || event.button !== 0 ? null : at(plot, event);
      if (!begin) return;
      area = document.createElementNS(SVG, "rect");
      area.setAttribute("class", "chosen-area");
      area.setAttribute("vector-effect", "non-scaling-stroke");
      plot.view.append(area);
      event.preventDefault();
      root.focus({ preventScroll: true });
    });
    const stretch = (point) => {
      hide();
      const y = plot.cells ? [begin.y, point.y] : [plot.y, plot.y + plot.height];
      area.setAttribute("x", Math.min(begin.x, point.x));
      area.setAttribute("y", Math.min(...y));
      area.setAttribute("width", Math.abs(begin.x - point.x));
      area.setAttribute("height", Math.abs(y[0] - y[1]));
    };
    const done = (event) => {
      const point = begin && at(plot, event);
      if (area) area.remove();
      if (point) {
        const dx = Math.abs(point.x - begin.x), dy = Math.abs(point.y - begin.y);
        const far = dx > 0.02 * plot.width && (!plot.cells || dy > 0.02 * plot.height);
        const y = plot.cells ? [Math.min(point.y, begin.y), dy] : [0, plot.h];
        if (far) seen(plot, ...snapped(plot, Math.min(point.x, begin.x), y[0], dx, y[1]));
        else if (!plot.cells) follow(plot, point);
      }
      begin = area = null;
    };
    root.addEventListener("pointerup", done);
    window.addEventListener("pointerup", () => { if (area) area.remove(); begin = area = null; });
    root.addEventListener("dblclick", () => whole(plot));
    root.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      scaled(plot, event.deltaY < 0 ? 0.8 : 1.25, at(plot, event));
    }, { passive: false });
    root.addEventListener("keydown", (event) => {
      const action = KEYS[event.key];
      if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      action(plot);
    });
  }

  function follow(plot, point) {
    const target = targetOf(plot, within((point.x / plot.w) * plot.values.length, plot.values.length));
    if (!target) return;
    choose(target);
    document.getElementById("slices").scrollIntoView();
  }

  // Buttons, for those without a mouse

  function button(label, title, action, name) {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = label;
    made.title = title;
    made.setAttribute("aria-label", title);
    made.className = name;
    made.addEventListener("click", action);
    return made;
  }

  const groups = new Set();
  for (const plot of plots.values()) {
    const { group } = plot.data;
    if (groups.has(group)) continue;
    groups.add(group);
    const tools = document.createElement("p");
    tools.className = "tools";
    tools.dataset.group = group;
    const title = plot.data.kind === "shares" ? plot.root.querySelector(".title").textContent : "";
    const axis = ` ${plot.cells ? title : names.axes[plot.data.axis].name}`.trimEnd();
    tools.append(
      `Zoom${axis}`, button("+", `Zoom in${axis}`, () => scaled(plot, 0.5), "in"),
      button("\u2212", `Zoom out${axis}`, () => scaled(plot, 2), "out"),
      button("all", `Show all${axis}`, () => whole(plot), "whole"),
    );
    tools.querySelector(".whole").disabled = true;
    const figure = plot.root.closest("figure");
    const held = figure.querySelector(".toolbars") || document.createElement("div");
    held.className = "toolbars";
    held.append(tools);
    if (!held.parentNode) figure.querySelector("figcaption").before(held);
  }

  // Marks that say what they are

  for (const each of document.querySelectorAll("[data-tip]")) {
    each.addEventListener("pointermove", (event) => show(each.dataset.tip, event.clientX, event.clientY));
    each.addEventListener("pointerleave", hide);
  }

  // Slices

  const select = document.getElementById("slab");
  function choose(id) {
    for (const each of document.querySelectorAll(".slab")) each.classList.toggle("shown", each.id === id);
    select.value = id;
  }
  select.addEventListener("change", () => choose(select.value));
  choose(document.querySelector(".slab").id);
  window.addEventListener("scroll", hide, { passive: true });
})();
