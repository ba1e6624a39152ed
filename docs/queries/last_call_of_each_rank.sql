-- What was the last call of each rank, and from which line? The rank that stopped first comes first.
-- Needs: Flight Recorder dumps.
select rank, host, group_desc, case when is_p2p then p2p_seq else seq end as seq, op, status,
       make_timestamp_ns(created_ns) as created,
       file || ':' || line as place, function
from collectives
join ranks using (rank)
left join frames on frame_id = site_id
qualify row_number() over (partition by rank order by record_id desc) = 1
order by created_ns - coalesce(clock_offset_ns, 0), rank
