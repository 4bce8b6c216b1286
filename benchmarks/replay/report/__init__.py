"""Tables, rows of targets, plots and pages made from the results of replays. Start at `target_rows.rows_of`."""
