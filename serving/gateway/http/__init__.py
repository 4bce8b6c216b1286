"""The gateway's HTTP side: routes (`app`), one call from request to answer (`endpoint`), reading requests and writing
responses (`exchange`), and time limits for slow clients (`slow_clients`).
"""
