"""Write the site's pages that come from code and from results, and mend what Sphinx reads."""
