-- Where is the main thread of each rank, according to its newest stacks?
-- Needs: thread stacks (rankscope record, py-spy or faulthandler).
with newest as (
    select rank, site_id, reason
    from thread_stacks
    where is_main
    qualify row_number() over (partition by rank order by time_ns desc, section desc) = 1
)
select file || ':' || line as place, function, count(*) as n_ranks, list(rank order by rank)[:8] as first_ranks,
       any_value(reason) as written_because
from newest
left join frames on frame_id = site_id
group by file, line, function
order by n_ranks, place
