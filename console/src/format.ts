// Values as people read them.

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const minute = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const date = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });
const count = new Intl.NumberFormat();
const short = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });

export const number = (value: number): string => count.format(value);
export const compact = (value: number): string => (value < 10_000 ? count.format(value) : short.format(value));
/** An amount in the currency of the prices, with as many digits as tell it from nothing. */
export const money = (amount: number): string => (amount === 0 || amount >= 0.1 ? amount.toFixed(2) : amount.toPrecision(2));
/** How amounts below each other are written: all with the digits that tell the least of them from nothing. */
export function moneyColumn(amounts: (number | null)[]): (amount: number) => string {
  const least = Math.min(...amounts.filter((each): each is number => each !== null && each > 0), 1);
  const digits = Math.min(8, Math.max(2, 1 - Math.floor(Math.log10(least))));
  return (amount) => amount.toFixed(digits);
}
export const clockTime = (seconds: number): string => clock.format(seconds * 1000);
export const exactTime = (seconds: number): string => day.format(seconds * 1000);

/** As short as tells it from now: the time of today, the minute of this year, else the day. */
export function time(seconds: number, now: number = Date.now() / 1000): string {
  if (Math.abs(now - seconds) < 72_000) return clock.format(seconds * 1000);
  return (Math.abs(now - seconds) < 300 * 86_400 ? minute : date).format(seconds * 1000);
}

const wall = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", timeZone: "UTC" });

/** A moment as the clocks of its own time zone show it, from its form in ISO 8601. */
export function wallTime(moment: string): string {
  const told = /^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d)?/.exec(moment)?.[0];
  return told ? wall.format(Date.parse(`${told}Z`)) : moment;
}

export function duration(seconds: number): string {
  if (seconds < 0) return "0 s";
  if (seconds < 0.01) return `${Number((seconds * 1000).toFixed(1))} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const whole = Math.round(seconds);
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${whole % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

// What a reader would not see, or would be misled by, is shown as a sign: control characters, those that turn text around, fillers, and the tags and
// selectors in which text can be hidden. A joiner stays where it makes one picture of several or joins letters of scripts that need it, and a selector behind
// the picture that it selects.
const HIDDEN = new RegExp(
  [
    "(?<=\\p{Extended_Pictographic}\\p{Emoji_Modifier}?\\uFE0F?)\\u200D(?=\\p{Extended_Pictographic})",
    "(?<=[\\p{Extended_Pictographic}0-9#*])\\uFE0F",
    "(?<=(?![\\p{Script=Latin}\\p{Script=Greek}\\p{Script=Cyrillic}])[\\p{L}\\p{M}])[\\u200C\\u200D](?=\\p{L})",
    "((?![\\t\\n])[\\p{Cc}\\p{Zl}\\p{Zp}\\p{Default_Ignorable_Code_Point}\\uFFF9-\\uFFFB])",
  ].join("|"),
  "gu",
);

export function visible(text: string): string {
  return text.replace(/\r\n/g, "\n").replace(HIDDEN, (found: string, hidden?: string) => {
    if (hidden === undefined) return found;
    const code = hidden.codePointAt(0)!;
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

/** What an application does for a person belongs to a tenant of its own: the person's tenant, this sign, and the person. */
const OWNED = "\u001f";

/** The tenant that keys have, without the person. */
export const tenantOf = (owner: string): string => owner.split(OWNED)[0]!;
/** A tenant as people read it. */
export const tenantName = (owner: string): string => owner.split(OWNED).filter(Boolean).join(", ");

const STATUS: Record<string, string> = {
  queued: "queued",
  in_progress: "running",
  completed: "completed",
  incomplete: "incomplete",
  failed: "failed",
  cancelled: "cancelled",
  requires_action: "waiting",
};

export const statusName = (status: string): string => STATUS[status] ?? status;
export const hasEnded = (status: string): boolean => status !== "queued" && status !== "in_progress";

const REASONS: Record<string, string> = {
  final_answer: "The model gave its answer.",
  refusal: "The model refused to answer.",
  client_action: "The client has to perform a call, and then continue.",
  approval_needed: "A person has to approve a call; the run goes on once it is answered.",
  max_turns: "It had used all the turns it was allowed.",
  max_tool_calls: "It had made all the calls it was allowed.",
  max_output_tokens: "The output was longer than allowed, and was cut.",
  content_filter: "The model's provider filtered the content.",
  provider_error: "The model's provider failed.",
  rate_limited: "The model's provider refused more requests for now.",
  consecutive_errors: "Too many calls failed in a row.",
  deadline: "It took longer than allowed.",
  budget: "Its budget was used up.",
  loop_detected: "The model kept repeating the same call.",
  cancelled: "It was cancelled.",
  internal_error: "The server failed; its log says why.",
};

export const reasonSentence = (reason: string | null | undefined): string => (reason ? (REASONS[reason] ?? reason) : "");

/** Why a run ended, and what its error says as a sentence of its own. */
export function endSentence(reason: string | null | undefined, error: string): string {
  // Only a word begins with a capital: names stay as they are written.
  const said = error.trim().replace(/^[a-z]+(?=[ ,])/, (word) => word[0]!.toUpperCase() + word.slice(1));
  return [reasonSentence(reason), /[\w`)]$/.test(said) ? `${said}.` : said].filter(Boolean).join(" ");
}
