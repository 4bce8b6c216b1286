"""What the gateway keeps of each call: the call itself (`calls`), its promise and phases (`slo_tracker`), the list of
recent calls (`call_records`), length forecasts (`length_forecasts`), metrics and logs.
"""
