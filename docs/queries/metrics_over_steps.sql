-- How do the metrics change over the steps, and which rank has the highest value?
-- Needs: metrics (rankscope record, or rankscope.metric in the script).
select name, step, count(distinct rank) as n_ranks, min(value) as lowest, median(value) as middle,
       max(value) as highest, arg_max(rank, value) as highest_rank
from metrics
group by name, step
order by name, step
