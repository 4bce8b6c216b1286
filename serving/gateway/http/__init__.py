"""The gateway's HTTP side: routes (`app`), one call from request to answer (`endpoint`), reading requests and writing
responses (`exchange`), and the connections of clients, with time limits for slow ones (`connections`).
"""
