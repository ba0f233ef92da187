/** Python's `strftime` with English names whatever the locale, for the `strftime_now` of templates. */

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = [
  "January",
  "February",
  "March",
  "April",
  "May",
  "June",
  "July",
  "August",
  "September",
  "October",
  "November",
  "December",
];

/** Formats local time; a directive that is not listed here stays as it is written. */
export function strftime(date: Date, format: string): string {
  const pad = (n: number, width = 2) => String(n).padStart(width, "0");
  const hour12 = date.getHours() % 12 || 12;
  const directives: Record<string, () => string> = {
    Y: () => String(date.getFullYear()),
    y: () => pad(date.getFullYear() % 100),
    m: () => pad(date.getMonth() + 1),
    d: () => pad(date.getDate()),
    H: () => pad(date.getHours()),
    I: () => pad(hour12),
    M: () => pad(date.getMinutes()),
    S: () => pad(date.getSeconds()),
    p: () => date.getHours() < 12 ? "AM" : "PM",
    A: () => DAYS[date.getDay()],
    a: () => DAYS[date.getDay()].slice(0, 3),
    B: () => MONTHS[date.getMonth()],
    b: () => MONTHS[date.getMonth()].slice(0, 3),
    j: () => pad(dayOfYear(date), 3),
    F: () => `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`,
    T: () => `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`,
    "%": () => "%",
  };
  return format.replace(/%([A-Za-z%])/g, (written, letter: string) => directives[letter]?.() ?? written);
}

function dayOfYear(date: Date): number {
  const start = Date.UTC(date.getFullYear(), 0, 1);
  return Math.floor((Date.UTC(date.getFullYear(), date.getMonth(), date.getDate()) - start) / 86_400_000) + 1;
}
