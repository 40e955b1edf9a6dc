// Keys, as the API has them (bytes in base64) and as people read them.

const decoder = new TextDecoder("utf-8", { fatal: true });
const encoder = new TextEncoder();

const raw = (base64) => Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));

/** A key as text. A byte that is no UTF-8 becomes \xff, as in the command line. */
export function keyText(base64) {
  const bytes = raw(base64);
  try {
    return decoder.decode(bytes);
  } catch {
    return Array.from(bytes, (one) => (one > 31 && one < 127 ? String.fromCharCode(one) : `\\x${one.toString(16).padStart(2, "0")}`)).join("");
  }
}

/** A text that a person typed, as a key of the API. */
export const typedKey = (text) => btoa(String.fromCharCode(...encoder.encode(text)));

const quoted = (base64) => `'${keyText(base64)}'`;

/** The bounds of an interval in words. */
export function rangeText({ start = "", end }) {
  if (!start && end === undefined) return "all keys";
  if (!start) return `below ${quoted(end)}`;
  return end === undefined ? `from ${quoted(start)}` : `${quoted(start)} to ${quoted(end)}`;
}

/** Whether a key is in an interval. */
export function holds({ start = "", end }, key) {
  return before(start, key) <= 0 && (end === undefined || before(key, end) < 0);
}

function before(one, other) {
  const [left, right] = [raw(one), raw(other)];
  for (let at = 0; at < Math.min(left.length, right.length); at += 1) if (left[at] !== right[at]) return left[at] - right[at];
  return left.length - right.length;
}
