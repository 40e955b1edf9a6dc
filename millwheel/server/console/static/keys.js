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

const BASE64 = "base64:";

/** A key as a part of an address: as text if it is text. */
export function keyPath(base64) {
  try {
    const text = decoder.decode(raw(base64));
    if (text && !text.startsWith(BASE64)) return text;
  } catch { /* no text */ }
  return BASE64 + base64;
}

/** The key that a part of an address names. */
export const pathKey = (part) => (part.startsWith(BASE64) ? part.slice(BASE64.length) : typedKey(part));

/** The first key after all keys that begin with a text. No byte of UTF-8 is 255. */
export function pastPrefix(base64) {
  const bytes = raw(base64);
  bytes[bytes.length - 1] += 1;
  return btoa(String.fromCharCode(...bytes));
}

/** A key between quotation marks, as Python writes it. */
function quoted(base64) {
  const text = keyText(base64);
  return text.includes("'") && !text.includes('"') ? `"${text}"` : `'${text.replaceAll("'", "\\'")}'`;
}

/** The bounds of an interval, as the command line has them. */
export const rangeText = ({ start = "", end }) => `[${quoted(start)}, ${end === undefined ? "+inf" : quoted(end)})`;
