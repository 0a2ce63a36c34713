"""Write the report of an audit, and the comparison of two audits, as web pages and JSON."""
