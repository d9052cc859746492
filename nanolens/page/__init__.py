"""The page: a local web server over run folders, read-only, on this machine's loopback alone.

`guard` decides who may ask, `server` which address answers what and tells open pages of news, `runs` holds what was
read, `series` turns a run into what a chart can draw, `view` says the rest of its page in the sentences of
`strings.toml`, `report` writes it into one file. `static/` is the front end, plain ES modules without a build step."""
