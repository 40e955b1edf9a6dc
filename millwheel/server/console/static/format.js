// Numbers, times and names for people. Watermarks come as texts of microseconds, and may be infinite.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const MINUS_INFINITY = "-9223372036854775808";
const PLUS_INFINITY = "9223372036854775807";

export const count = (number) => whole.format(Number(number));

export function rate(perSecond) {
  if (perSecond === 0) return "0";
  if (perSecond < 0.05) return "<0.1";
  return perSecond < 10 ? perSecond.toFixed(1) : whole.format(perSecond);
}

/** Seconds of work per second, as a share of a core. */
export const cpu = (busy) => `${busy > 0 && busy < 0.0995 ? (busy * 100).toFixed(1) : whole.format(busy * 100)} %`;

export function bytes(given) {
  let value = Number(given);
  if (value < 1000) return `${whole.format(value)} B`;
  for (const unit of ["kB", "MB", "GB"]) {
    value /= 1000;
    if (value < 999.5) return `${value < 9.95 ? value.toFixed(1) : whole.format(value)} ${unit}`;
  }
  return `${(value / 1000).toFixed(1)} TB`;
}

const UNITS = [["y", 31_536_000], ["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];

/** A duration as the command line has it: its two largest units. */
export function duration(seconds) {
  if (seconds < 0) return `-${duration(-seconds)}`;
  if (seconds === 0) return "0 s";
  if (seconds < 0.9995) return `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const all = Math.round(seconds);
  const large = UNITS.findIndex(([, size]) => all >= size);
  const [name, size] = UNITS[large];
  const [below, smaller] = UNITS[large + 1] ?? ["", 1];
  const rest = Math.floor((all % size) / smaller);
  return `${whole.format(Math.floor(all / size))} ${name}${below && rest ? ` ${rest} ${below}` : ""}`;
}

/** A watermark as a time in UTC, or in words. */
export function moment(us) {
  if (us === MINUS_INFINITY) return "none yet";
  if (us === PLUS_INFINITY) return "ended";
  const date = new Date(Number(us) / 1000);
  if (Number.isNaN(date.getTime())) return "beyond the calendar";
  return date.toISOString().replace("T", " ").slice(0, 21);
}

export const clock = (ms) => new Date(ms).toISOString().slice(11, 19);

/** Seconds between now and a watermark; null if it is infinite or not known. */
export function lag(nowUs, watermark) {
  const us = watermark?.low_watermark_us ?? watermark;
  if (us === null || us === undefined || us === MINUS_INFINITY || us === PLUS_INFINITY) return null;
  return (Number(nowUs) - Number(us)) / 1e6;
}

/** The data lag in words. */
export function lagText(nowUs, watermark) {
  if (!watermark) return "not known";
  const seconds = lag(nowUs, watermark);
  return seconds === null ? moment(watermark.low_watermark_us ?? watermark) : duration(seconds);
}

/** The name of a stream within its own topology. */
export const local = (topology, stream) => (stream.startsWith(`${topology}/`) ? stream.slice(topology.length + 1) : stream);

export const stateName = (state) => state.replace("TOPOLOGY_STATE_", "").toLowerCase();

export const plural = (number, noun) => `${count(number)} ${noun}${Number(number) === 1 ? "" : "s"}`;

/** Why a call failed, and what to do about it. */
export const failureText = ({ message, remedy }) => (remedy ? `${message} — ${remedy}` : message);

/** Addresses of the page's views. */
export const to = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;
