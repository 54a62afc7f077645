// Learning curves: the value under the pointer is shown, a drag zooms into a part, a double click shows everything again.
const WIDTH = 480, HEIGHT = 320, BOX = {left: 58, right: 470, top: 10, bottom: 276};
const element = (name, attributes, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  made.append(...children);
  return made;
};
const short = value => String(Number(value.toPrecision(6)));

function ticks(low, high) {  // some five, at multiples of 1, 2 or 5 times a power of ten
  const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(factor => factor * power >= rough);
  const first = Math.ceil(low / step), last = Math.floor(high / step + 1e-9);
  return Array.from({length: last - first + 1}, (_, place) => (first + place) * step);
}

function whole(curves) {  // the part of the plane that has all points, and a little more
  const steps = curves.flatMap(curve => curve.points.map(point => point[0]));
  const values = curves.flatMap(curve => [...curve.points.flatMap(point => point.slice(1)), ...curve.chosen.map(point => point[1])]);
  const range = found => {
    const low = found.reduce((a, b) => Math.min(a, b), Infinity), high = found.reduce((a, b) => Math.max(a, b), -Infinity);
    const margin = 0.04 * (high - low) || Math.abs(high) / 10 || 1;
    return [low - margin, high + margin];
  };
  return steps.length ? [...range(steps), ...range(values)] : [0, 1, 0, 1];
}

function chart(figure, curves) {
  let [x0, x1, y0, y1] = whole(curves), pressed = null;
  const x = step => BOX.left + (step - x0) / (x1 - x0) * (BOX.right - BOX.left);
  const y = value => BOX.bottom - (value - y0) / (y1 - y0) * (BOX.bottom - BOX.top);
  const clip = `inside-${figure.id}`, near = figure.querySelector("output"), title = figure.querySelector("figcaption").textContent;
  const grid = element("g", {class: "grid"}), lines = element("g", {class: "lines", "clip-path": `url(#${clip})`});
  const frame = {x: BOX.left, y: BOX.top, width: BOX.right - BOX.left, height: BOX.bottom - BOX.top};
  const part = element("rect", {class: "part"}), mark = element("circle", {class: "mark", r: 5, hidden: ""});
  const svg = element("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Learning curves: ${title} by step, of ${figure.dataset.runs}`},
    element("clipPath", {id: clip}, element("rect", frame)), grid, lines, part, mark);

  function draw() {
    const path = points => points.map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
    grid.replaceChildren(
      ...ticks(x0, x1).flatMap(step => [element("path", {d: `M${x(step)} ${BOX.top}V${BOX.bottom}`}), element("text", {x: x(step), y: BOX.bottom + 18, "text-anchor": "middle"}, short(step))]),
      ...ticks(y0, y1).flatMap(value => [element("path", {d: `M${BOX.left} ${y(value)}H${BOX.right}`}), element("text", {x: BOX.left - 6, y: y(value) + 4, "text-anchor": "end"}, short(value))]),
      element("text", {x: (BOX.left + BOX.right) / 2, y: HEIGHT - 6, "text-anchor": "middle"}, "step"));
    lines.replaceChildren(...curves.toReversed().flatMap(({points, chosen, colour, dashed}) => [  // the best above the others
      ...(points.length && points[0].length > 2 ? [element("polygon", {points: path([...points.map(p => [p[0], p[3]]), ...points.toReversed().map(p => [p[0], p[2]])]), fill: colour})] : []),
      element("polyline", {points: path(points), stroke: colour, ...(dashed && {"stroke-dasharray": "6 4"})}),
      ...(points.length < 30 ? points.map(([step, value]) => element("circle", {cx: x(step), cy: y(value), r: 2, fill: colour})) : []),
      ...chosen.map(([step, value]) => element("text", {class: "star", x: x(step), y: y(value) + 6, "text-anchor": "middle", fill: colour}, "★"))]));
    mark.setAttribute("hidden", "");
  }
  const at = event => {
    const {left, top, width} = svg.getBoundingClientRect(), scale = WIDTH / width, within = (value, low, high) => Math.min(Math.max(value, low), high);
    return [within((event.clientX - left) * scale, BOX.left, BOX.right), within((event.clientY - top) * scale, BOX.top, BOX.bottom)];
  };
  const between = ([a, b], [c, d]) => ({x: Math.min(a, c), y: Math.min(b, d), width: Math.abs(a - c), height: Math.abs(b - d)});
  const outline = found => Object.entries(found).forEach(([key, value]) => part.setAttribute(key, value));
  svg.onpointerdown = event => { pressed = at(event); svg.setPointerCapture(event.pointerId); };
  svg.onpointermove = event => {
    const [px, py] = at(event);
    if (pressed) return outline(between(pressed, [px, py]));
    let best = Infinity;
    for (const curve of curves) for (const point of curve.points) {
      const distance = (x(point[0]) - px) ** 2 + (y(point[1]) - py) ** 2;
      if (distance >= best || point[0] < x0 || point[0] > x1 || point[1] < y0 || point[1] > y1) continue;
      best = distance;
      mark.setAttribute("cx", x(point[0])); mark.setAttribute("cy", y(point[1])); mark.removeAttribute("hidden");
      near.textContent = `${curve.name}: ${short(point[1])}${point.length > 2 ? ` (${short(point[2])} to ${short(point[3])})` : ""} at step ${point[0]}`;
    }
  };
  svg.onpointerup = event => {
    const {x: left, y: top, width, height} = between(pressed ?? at(event), at(event));
    const step = px => x0 + (px - BOX.left) / (BOX.right - BOX.left) * (x1 - x0), value = py => y0 + (BOX.bottom - py) / (BOX.bottom - BOX.top) * (y1 - y0);
    if (width > 5 && height > 5) [x0, x1, y0, y1] = [step(left), step(left + width), value(top + height), value(top)];
    pressed = null;
    outline({width: 0, height: 0});
    draw();
  };
  svg.onpointercancel = () => { pressed = null; outline({width: 0, height: 0}); };  // a finger that scrolls the page
  svg.ondblclick = () => { [x0, x1, y0, y1] = whole(curves); draw(); };
  near.before(svg);
  draw();
}

const panels = JSON.parse(document.getElementById("curves").textContent);
document.querySelectorAll("figure[data-runs]").forEach((figure, place) => chart(figure, panels[place]));
