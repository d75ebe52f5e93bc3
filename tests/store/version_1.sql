-- A file as the first schema left it: run `a` has ended, run `b` continues it and is under way.
PRAGMA application_id = 1299411058;
BEGIN TRANSACTION;
CREATE TABLE runs (
            number INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            parent TEXT,
            model TEXT NOT NULL,
            background INTEGER NOT NULL,
            status TEXT NOT NULL,
            created_at REAL NOT NULL,
            ended_at REAL,
            response BLOB,
            entries BLOB
        );
INSERT INTO "runs" VALUES(1,'a',NULL,'m',0,'completed',1.0,9.0,CAST('{"id":"a","object":"response","created_at":1,"completed_at":null,"status":"completed","background":false,"error":null,"incomplete_details":null,"instructions":null,"max_output_tokens":null,"max_tool_calls":null,"metadata":{},"model":"m","output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"hi","annotations":[],"logprobs":[]}],"id":"msg_0","status":"completed"}],"parallel_tool_calls":true,"previous_response_id":null,"reasoning":null,"required_input":null,"service_tier":"default","store":true,"temperature":1.0,"text":{"format":{"type":"text"}},"tool_choice":"auto","tools":[],"top_logprobs":0,"top_p":1.0,"presence_penalty":0.0,"frequency_penalty":0.0,"truncation":"disabled","usage":null,"safety_identifier":null,"prompt_cache_key":null,"user":null}' AS BLOB),CAST('[[{"type":"message","role":"user","content":[{"type":"input_text","text":"hello"}],"id":"","status":"completed"},"input",0,false],[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"hi","annotations":[],"logprobs":[]}],"id":"msg_0","status":"completed"},"model",1,false]]' AS BLOB));
INSERT INTO "runs" VALUES(2,'b','a','m',0,'in_progress',2.0,NULL,NULL,NULL);
CREATE TABLE segments (
            run INTEGER NOT NULL REFERENCES runs (number) ON DELETE CASCADE,
            first INTEGER NOT NULL,
            last INTEGER NOT NULL,
            body BLOB NOT NULL,
            PRIMARY KEY (run, first)
        );
INSERT INTO "segments" VALUES(1,0,0,CAST('[[0,1.0,{"type":"run_started","spec":{"id":"a","model":"m","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"hello"}],"id":"","status":"completed"}],"instructions":null,"tools":[],"tool_choice":{"mode":"auto","name":null,"allowed":null},"limits":{"max_turns":10,"max_tool_calls":null,"max_tool_calls_per_turn":null,"max_tokens":null,"max_output_tokens":null,"max_seconds":null,"max_errors_in_row":3,"max_repeats":null,"turn_seconds":null,"tool_seconds":null,"tool_output_chars":15000,"concurrency":null},"completion":{"confirm":null,"close":null,"repeat":"You have made the very same tool call several times in a row. Repeating it will not help: try something else, or give your answer with what you know.","retry_model_errors":false},"sampling":{"temperature":null,"top_p":null,"max_turn_tokens":null,"text":null,"reasoning":null,"extra":null},"window":{"max_messages":null,"max_chars":null},"preset":"responses","parallel_tool_calls":true,"parent":null,"store":true,"background":false,"metadata":{},"echo":{}}}]]' AS BLOB));
INSERT INTO "segments" VALUES(1,1,2,CAST('[[1,1.0,{"type":"text_delta","item_id":"msg_1","delta":"hi","index":0}],[2,9.0,{"type":"run_ended","status":"completed","reason":"final_answer","error":null}]]' AS BLOB));
INSERT INTO "segments" VALUES(2,0,0,CAST('[[0,2.0,{"type":"run_started","spec":{"id":"b","model":"m","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"hello"}],"id":"","status":"completed"}],"instructions":null,"tools":[],"tool_choice":{"mode":"auto","name":null,"allowed":null},"limits":{"max_turns":10,"max_tool_calls":null,"max_tool_calls_per_turn":null,"max_tokens":null,"max_output_tokens":null,"max_seconds":null,"max_errors_in_row":3,"max_repeats":null,"turn_seconds":null,"tool_seconds":null,"tool_output_chars":15000,"concurrency":null},"completion":{"confirm":null,"close":null,"repeat":"You have made the very same tool call several times in a row. Repeating it will not help: try something else, or give your answer with what you know.","retry_model_errors":false},"sampling":{"temperature":null,"top_p":null,"max_turn_tokens":null,"text":null,"reasoning":null,"extra":null},"window":{"max_messages":null,"max_chars":null},"preset":"responses","parallel_tool_calls":true,"parent":"a","store":true,"background":false,"metadata":{},"echo":{}}}]]' AS BLOB));
CREATE INDEX runs_by_time ON runs (created_at);
CREATE INDEX runs_by_status ON runs (status, created_at);
COMMIT;
PRAGMA user_version = 1;
