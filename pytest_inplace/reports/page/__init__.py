"""One HTML page of all tests and findings: the data as JSON, a script that draws it, nothing from outside."""
