// Questions to the server that this page came from. Addresses are relative, so that the token goes along in the path.

export class Failed extends Error {}

/** The answer's JSON. Throws Failed with what the server, or the lack of one, says. */
export async function ask(path, signal) {
  let response;
  try {
    response = await fetch(`api/${path}`, {signal});
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Failed('The server does not answer: is `ramify browse --web` still running?');
  }
  const said = await response.json();
  if (!response.ok) throw new Failed(said.error ?? `The server answered ${response.status}`);
  return said;
}

/** Sends what is to be stored; the answer's JSON. The token goes in a header, too: a page elsewhere cannot send it. */
export async function tell(path, value) {
  const headers = {'content-type': 'application/json', 'x-ramify-token': location.pathname.split('/')[1]};
  let response;
  try {
    response = await fetch(`api/${path}`, {method: 'POST', headers, body: JSON.stringify(value)});
  } catch {
    throw new Failed('The server does not answer: is `ramify browse --web` still running?');
  }
  const said = await response.json();
  if (!response.ok) throw new Failed(said.error ?? `The server answered ${response.status}`);
  return said;
}

export const address = (...parts) => parts.map(encodeURIComponent).join('/');
