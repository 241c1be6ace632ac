start() {
    mkdir -p conf logs temp webapps/ROOT/WEB-INF work
    cp "$ROOT"/[0-9]* webapps/ROOT/
    cat >webapps/ROOT/echo.jsp <<'END'
<%@ page trimDirectiveWhitespaces="true" %><%
byte[] body = request.getInputStream().readAllBytes();
response.setContentLength(body.length);
response.getOutputStream().write(body);
%>
END
    cat >webapps/ROOT/WEB-INF/web.xml <<'END'
<web-app xmlns="https://jakarta.ee/xml/ns/jakartaee" version="5.0">
  <servlet><servlet-name>echo</servlet-name><jsp-file>/echo.jsp</jsp-file></servlet>
  <servlet-mapping><servlet-name>echo</servlet-name><url-pattern>/echo</url-pattern></servlet-mapping>
</web-app>
END
    cat >conf/server.xml <<END
<Server port="-1">
  <Service name="Catalina">
    <Connector port="$PORT" address="0.0.0.0" protocol="org.apache.coyote.http11.Http11NioProtocol" maxPostSize="-1" />
    <Engine name="Catalina" defaultHost="localhost">
      <Host name="localhost" appBase="webapps" />
    </Engine>
  </Service>
</Server>
END
    cp /etc/tomcat10/web.xml conf/
    export CATALINA_HOME=/usr/share/tomcat10 CATALINA_BASE=$WORK
    exec /usr/share/tomcat10/bin/catalina.sh run
}
check() { ask parallel keep_alive half_close half_close_amid slow_reader upload; }
