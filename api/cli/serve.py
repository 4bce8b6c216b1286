"""`ramify serve`: the gateway by itself."""

from __future__ import annotations

import click

from ramify.cli.app import App, pass_app, say


@click.command("serve", short_help="An OpenAI-compatible API that orders calls by deadline.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: any free one.")
@click.option("--base-url", help="The OpenAI-compatible engine behind it, in place of the embedded model.")
@click.option("--api-key", envvar="RAMIFY_API_KEY", help="For --base-url.  [default: $RAMIFY_API_KEY]")
@click.option("--model", help="The embedded model.")
@click.option("--slots", type=click.IntRange(min=1), help="How many calls the engine works on at once.")
@pass_app
def serve_command(
    app: App,
    host: str,
    port: int,
    base_url: str | None,
    api_key: str | None,
    model: str | None,
    slots: int | None,
) -> None:
    """Serve an OpenAI-compatible API that orders calls by their deadlines.

    Ctrl-C lets the calls in progress end; a second one breaks them off.
    """
    from ramify.serving.gateway.server import serve

    app.run(
        serve(
            home=app.home,
            host=host,
            port=port,
            upstream=base_url,
            upstream_key=api_key,
            model=model,
            slots=slots,
            ready=lambda url: say(f"serving {base_url or 'the embedded model'} at {url}", err=True),
        )
    )
