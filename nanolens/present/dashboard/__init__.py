"""The page: a local web server over run folders, read-only, on this machine's loopback alone.

`app` builds it from values and callables that `page.runs` hands in; `page.guard` decides who may ask; `page.series`, `decimate` and
`series` turn a Run into what a chart can draw; `page.view` says the rest of a run's page; `live` tells of news; `page/static/` is the front
end, plain ES modules without a build step.
"""
