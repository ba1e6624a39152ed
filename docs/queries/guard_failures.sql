-- Which guards failed, what did they expect, and what did they get?
-- Needs: TORCH_TRACE logs, or TORCH_LOGS=recompiles.
select cause, subject, file || ':' || line as place, count(*) as n_failures, count(distinct rank) as n_ranks,
       count(distinct guard) as n_guards, min(guard) as one_guard,
       list(distinct expected order by expected) filter (where expected is not null) as expected,
       list(distinct actual order by actual) filter (where actual is not null) as actual_values
from recompiles
group by cause, subject, place
order by n_failures desc, subject, place
limit 20
