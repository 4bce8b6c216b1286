"""The default backend: worlds in Linux namespaces, for any user. Trees are overlays; a world has its own processes
and no network.
"""
