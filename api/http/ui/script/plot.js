// A plot of the last two minutes: one line for each series, drawn as SVG.

const WIDTH = 240;
const HEIGHT = 60;
const PLOT_SECONDS = 120;
/** Nobody looked for longer than this between two points: there is nothing to draw in between. */
const GAP_SECONDS = 5;

class Plot {
  /** `series` has a name for people and a function of a point for each line. */
  constructor(node, series) {
    this.series = series;
    this.lines = series.map((_, place) => makeSvg("path", { class: `line line-${place}` }));
    this.areas = series.map((_, place) => makeSvg("path", { class: `area line-${place}` }));
    const shape = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" };
    this.values = series.map((_, place) => make("span", { class: `value line-${place}` }));
    this.top = make("span", { class: "limit" });
    const middle = makeSvg("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT / 2, y2: HEIGHT / 2 });
    const picture = makeSvg("svg", shape, middle, ...this.areas, ...this.lines);
    node.append(
      make("figcaption", {}, ...this.values),
      make("div", { class: "field" }, picture, this.top),
      make("div", { class: "axis", "aria-hidden": "true" }, make("span", {}, "2 min ago"), make("span", {}, "now")),
    );
  }

  /** `now` are the figures that the caption tells; the rest is drawn. */
  draw(points, now) {
    const columns = this.series.map(({ of }) => points.map(of));
    const top = ceiling(Math.max(1, ...columns.flat()));
    say(this.top, figure(top));
    const stretches = unbroken(points);
    columns.forEach((values, place) => {
      const lines = stretches.map(({ first, end }) => points.slice(first, end).map(({ at }, index) => (
        `${across(at)} ${(HEIGHT * (1 - values[first + index] / top)).toFixed(2)}`
      )).join(" L"));
      this.lines[place].setAttribute("d", lines.map((line) => `M${line}`).join(" "));
      this.areas[place].setAttribute("d", lines.map((line, number) => {
        const { first, end } = stretches[number];
        return `M${across(points[first].at)} ${HEIGHT} L${line} L${across(points[end - 1].at)} ${HEIGHT} Z`;
      }).join(" "));
      say(this.values[place], `${figure(now[place])} ${this.series[place].name}`);
    });
  }
}

/** The stretches of points without a gap: where each begins, and where the one behind its last point is. */
function unbroken(points) {
  const stretches = [];
  points.forEach(({ at }, index) => {
    if (index === 0 || at - points[index - 1].at > GAP_SECONDS) {
      stretches.push({ first: index, end: index });
    }
    stretches.at(-1).end = index + 1;
  });
  return stretches;
}

function across(at) {
  return (WIDTH * Math.max(0, 1 + at / PLOT_SECONDS)).toFixed(2);
}

/** The next round number that is not less. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((factor) => factor * power >= value) * power;
}
