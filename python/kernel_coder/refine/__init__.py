"""One module made faster: answers, verdicts and further answers under a budget; the best verified kernel is kept."""
