// Requests to the page's server. Addresses are relative, so that their path includes the token.

export class Failed extends Error {}

/** The response's JSON. Throws Failed with the server's message, or if there is no server. */
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

/** Sends a value to store; returns the response's JSON. The token is also in a header, which no other site's page can send. */
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
