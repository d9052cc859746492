"""The page: a local web server over run folders, read-only, on this machine's loopback alone.

`app` builds it from values and callables that `api.dashboard` hands in; `guard` decides who may ask; `columns`, `decimate` and `series`
turn a Run into what a chart can draw; `view` says the rest of a run's page; `live` tells of news; `page/` is the front end, plain ES
modules without a build step.
"""
