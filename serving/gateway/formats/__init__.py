"""The APIs that clients may speak, in terms of those that engines speak.

An engine gets a chat, a text completion, or a response (`dialects`). A client may ask in one more format, Anthropic's
messages; and the embedded engine gets every response as a chat. Start at `apis`.
"""
