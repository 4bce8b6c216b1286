"""SLO tags, client, gateway, policies and engines. Knows no sandboxes and no compiler."""
