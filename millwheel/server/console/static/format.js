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

/** Seconds of work per second. */
export function cores(busy) {
  if (busy > 0 && busy < 0.0005) return "<0.001";
  return busy > 0 && busy < 0.095 ? busy.toFixed(3) : busy.toFixed(2);
}

export function bytes(given) {
  let value = Number(given);
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024) return `${value < 10 && unit !== "B" ? value.toFixed(1) : whole.format(value)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} TiB`;
}

export function duration(seconds) {
  const size = Math.abs(seconds);
  const sign = seconds < 0 ? "−" : "";
  if (size < 0.0005) return "0 s";
  if (size < 1) return `${sign}${Math.round(size * 1000)} ms`;
  if (size < 10) return `${sign}${size.toFixed(1)} s`;
  const [minutes, hours, days] = [size / 60, size / 3600, size / 86400];
  if (size < 100) return `${sign}${Math.round(size)} s`;
  if (size < 6000) return `${sign}${Math.floor(minutes)} min ${Math.floor(size % 60)} s`;
  if (size < 172800) return `${sign}${Math.floor(hours)} h ${Math.floor(minutes % 60)} min`;
  return days < 730 ? `${sign}${Math.round(days)} d` : `${sign}${(days / 365.25).toFixed(1)} y`;
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

/** Addresses of the page's views. */
export const to = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;
