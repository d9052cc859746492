// What is looked at, in the address behind the "#": a reload, a bookmark and a link show the same.

export function here() {
  const [path, query = ""] = location.hash.replace(/^#/, "").split("?");
  return { path: path || "/", state: new URLSearchParams(query) };
}

/** Puts values into the address without a new entry in the history; empty ones leave it. */
export function keep(values) {
  const { path, state } = here();
  for (const [key, value] of Object.entries(values)) {
    if (value === null || value === undefined || value === "" || value === false) state.delete(key);
    else state.set(key, value === true ? "1" : String(value));
  }
  const query = state.toString().replaceAll("%2C", ",").replaceAll("%3A", ":");
  const hash = `#${path}${query ? `?${query}` : ""}`;
  if (hash !== location.hash && (location.hash || query)) history.replaceState(null, "", location.pathname + hash);
}
