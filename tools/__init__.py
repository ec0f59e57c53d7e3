"""One module a tool: typed request, plan, run, typed result. No torch above engines/worker."""
