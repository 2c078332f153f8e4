// Requests to the server. The token arrives in the fragment of the address, which browsers neither send nor
// log, and moves to the storage of this origin at once, so that it stays neither in the address bar nor in
// the history.

const KEY = "tumoar";

export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    localStorage.setItem(KEY, given);
    history.replaceState(null, "", location.pathname);
  }
  return localStorage.getItem(KEY) !== null;
}

export class Refusal extends Error {
  constructor(status, body) {
    super([body.error, body.do].filter(Boolean).join(": "));
    this.status = status;
  }
}

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, {
      ...options,
      headers: { Authorization: `Bearer ${localStorage.getItem(KEY)}`, ...options.headers },
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, { error: "the server has ended", do: "start tumoar again; no stroke is lost" });
  }
  if (!answer.ok) throw new Refusal(answer.status, await answer.json().catch(() => ({ error: answer.statusText })));
  return answer;
}

export const get = async (path) => (await ask(path)).json();
export const bytes = async (path) => new Uint8Array(await (await ask(path)).arrayBuffer());
export const send = async (path, body = {}, method = "POST") =>
  (await ask(path, { method, body: JSON.stringify(body), headers: { "Content-Type": "application/json" } })).json();
export const put = async (path, body) => (await ask(path, { method: "PUT", body })).json();

// Follow a stream of events until `signal` ends it; a lost connection is taken up again.
export async function follow(path, signal, tell, lost) {
  while (!signal.aborted) {
    try {
      const reader = (await ask(path, { signal })).body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const part of parts) if (part.startsWith("data: ")) tell(JSON.parse(part.slice(6)));
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401) return lost(error);
      lost(error);
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}
